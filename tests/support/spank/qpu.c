/*
 * A SPANK plugin that adds --qpu=NAMES, for tests.
 *
 * What it does as QRMI's plugin (spank_qrmi) does, which it stands in for: it adds the
 * option to sbatch, salloc and srun; when the batch script's step starts it acquires each
 * QPU of the configuration that plugstack.conf names, sets the variables of the QPU, its
 * token, SLURM_JOB_QPU_RESOURCES and SLURM_JOB_QPU_TYPES for that step, from which srun
 * passes them on; a QPU that it cannot acquire is left out with a line in slurmd's log, and
 * the job fails if there is none left; when the step ends it releases what it acquired.
 *
 * What it does not: QRMI itself (a helper speaks to the service instead, so the only type
 * of QPU it knows is sfq), variables that the user sets beforehand, and
 * <name>_QRMI_JOB_TIMEOUT_SECONDS.
 *
 * In plugstack.conf: required PATH/qpu.so PYTHON HELPER CONFIGURATION
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(qpu, 1)

#define LINE 4096

static char names[LINE];
static char held[LINE];

static int set_names(int val, const char *given, int remote)
{
	(void)val, (void)remote;
	snprintf(names, sizeof names, "%s", given);
	/* it goes to a shell */
	return names[strspn(names, "abcdefghijklmnopqrstuvwxyz"
				   "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_,")] ?
		       ESPANK_BAD_ARG : ESPANK_SUCCESS;
}

static struct spank_option options[] = {
	{"qpu", "names", "Comma separated list of QPUs to use.", 1, 0, set_names},
	SPANK_OPTIONS_TABLE_END
};

static FILE *helper(char **argv, const char *what, const char *which)
{
	char command[4 * LINE];

	snprintf(command, sizeof command, "exec %s %s %s %s '%s'",
		 argv[0], argv[1], what, argv[2], which);
	return popen(command, "r");
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argv;
	return argc == 3 ? spank_option_register(spank, options) : ESPANK_BAD_ARG;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	uint32_t step;
	char line[LINE];
	FILE *told;

	(void)argc;
	if (!*names || !spank_remote(spank) ||
	    spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    step != SLURM_BATCH_SCRIPT)
		return ESPANK_SUCCESS;
	if (!(told = helper(argv, "acquire", names)))
		return ESPANK_ERROR;
	/* KEY=VALUE for the job, and one line without "=": the tokens to give back */
	while (fgets(line, sizeof line, told)) {
		char *value = strchr(line, '=');

		line[strcspn(line, "\n")] = 0;
		if (value) {
			*value = 0;
			spank_setenv(spank, line, value + 1, 1);
		} else {
			snprintf(held, sizeof held, "%s", line);
		}
	}
	if (pclose(told) || !*held) {
		slurm_error("qpu: none of %s could be acquired", names);
		return ESPANK_ERROR;
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
	FILE *told;

	(void)argc;
	if (!*held || !spank_remote(spank))
		return ESPANK_SUCCESS;
	told = helper(argv, "release", held);
	*held = 0;
	return told && !pclose(told) ? ESPANK_SUCCESS : ESPANK_ERROR;
}
