"""Choose the answer with the fewest conflicts, and of these the largest."""

import json
import sys
from pathlib import Path

answers = [json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]
best = min(answers, key=lambda one: (len(one["conflicts"]), -len(one["chosen"])))
Path("best.json").write_text(json.dumps(best), "utf-8")
