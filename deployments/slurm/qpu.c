/*
 * A SPANK plugin: sbatch, srun and salloc get --qpu=NAME, --qpu-seconds=S, --qpu-shots=N and
 * --qpu-qubits=N. It checks the values and passes them to job_submit.lua, which does the rest.
 *
 *     gcc -shared -fPIC -o qpu.so qpu.c
 *
 * plugstack.conf, on the hosts where jobs are submitted: optional PATH/qpu.so
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(qpu, 1)

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"

enum {NAME, SECONDS, SHOTS, QUBITS, OPTIONS};

static int take(int option, const char *given, int remote);

static struct spank_option options[] = {
	{"qpu", "NAME", "wait for a lease of this QPU", 1, NAME, take},
	{"qpu-seconds", "S", "seconds on the QPU that the job may use", 1, SECONDS, take},
	{"qpu-shots", "N", "shots that a QPU job of it may have", 1, SHOTS, take},
	{"qpu-qubits", "N", "qubits or variables that a QPU job of it may have",
	 1, QUBITS, take},
	SPANK_OPTIONS_TABLE_END
};

/* as job_submit.lua reads them */
static const char *variables[] = {"QPU_NAME", "QPU_SECONDS", "QPU_SHOTS", "QPU_QUBITS"};
static const char *expected[] = {
	"the name of a QPU",
	"a number of seconds above 0, such as 30 or 1.5",
	"a whole number of at least 1",
	"a whole number of at least 1",
};
static char *values[OPTIONS];

static int is_name(const char *given)
{
	return strspn(given, LETTERS) && !given[strspn(given, LETTERS DIGITS)];
}

static int is_whole(const char *given)
{
	return strlen(given) < 10 && !given[strspn(given, DIGITS)] && atol(given) > 0;
}

static int is_seconds(const char *given)
{
	const char *rest = given + strspn(given, DIGITS);

	if (*rest == '.')
		rest += 1 + strspn(rest + 1, DIGITS);
	return strlen(given) < 20 && !*rest && atof(given) > 0;
}

/* Slurm would print a line of its own for an error, without what is expected. */
static void refuse(const char *option, const char *why)
{
	slurm_error("--%s: %s", option, why);
	exit(1);
}

static int take(int option, const char *given, int remote)
{
	static int (*const is_valid[])(const char *) =
		{is_name, is_seconds, is_whole, is_whole};
	char why[256];

	if (remote)
		return ESPANK_SUCCESS;
	if (!is_valid[option](given)) {
		snprintf(why, sizeof why, "expected %s, not '%.99s'",
			 expected[option], given);
		refuse(options[option].name, why);
	}
	if (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))
		refuse(options[option].name, "the lease is that of the job, which has begun");
	free(values[option]);
	values[option] = strdup(given);
	return values[option] ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	int i, status;

	(void)argc, (void)argv;
	for (i = 0; i < OPTIONS; i++) {
		status = spank_option_register(spank, &options[i]);
		if (status != ESPANK_SUCCESS)
			return status;
	}
	return ESPANK_SUCCESS;
}

/*
 * Slurm would give the options to other components of a heterogeneous job, and to the jobs
 * that the job submits itself.
 */
static void keep_to_job(spank_t spank, const char *option)
{
	char variable[64];
	char *c;

	snprintf(variable, sizeof variable, "_SLURM_SPANK_OPTION_qpu_%s", option);
	for (c = variable; (c = strchr(c, '-')); )
		*c = '_';
	spank_job_control_unsetenv(spank, variable);
	unsetenv(variable);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	int i, status;

	(void)argc, (void)argv;
	if (spank_remote(spank))
		return ESPANK_SUCCESS;
	for (i = 0; i < OPTIONS; i++) {
		keep_to_job(spank, options[i].name);
		if (!values[i]) {
			/* of the component before */
			spank_job_control_unsetenv(spank, variables[i]);
			continue;
		}
		status = spank_job_control_setenv(spank, variables[i], values[i], 1);
		if (status != ESPANK_SUCCESS)
			return status;
		free(values[i]);
		values[i] = NULL;
	}
	return ESPANK_SUCCESS;
}
