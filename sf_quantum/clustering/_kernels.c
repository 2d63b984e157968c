int sfq_version(void) { return 1; }
