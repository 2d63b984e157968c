/*
 * Ask Slurm which pending jobs it could start: for `sfq slurm`, on the host of slurmctld, as
 * SlurmUser. Slurm's own commands only test jobs that have yet to be submitted.
 *
 *     gcc -o qpu-can-start qpu_can_start.c -lslurm
 *     $ qpu-can-start 4711 4712 4713
 *     4711 yes
 *     4712 no Requested node configuration is not available
 *     4713 no reservation maintenance holds its nodes until 2026-11-26T18:00:00
 *
 * "no" means: not as nodes, partitions and reservations are now. Jobs that run are no reason,
 * since they end. A job that Slurm does not describe has the answer "unknown".
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

/* a part of the API that the header leaves out */
extern void slurm_free_will_run_response_msg(will_run_response_msg_t *answer);

/* since Slurm 26.05, a job is named by a structure that also has its step */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
static slurm_step_id_t job_named(uint32_t id)
{
	slurm_step_id_t named = SLURM_STEP_ID_INITIALIZER;

	named.job_id = id;
	return named;
}

#define NAME_JOB(asked, id) ((asked)->step_id = job_named(id))
#else
#define job_named(id) (id)
#define NAME_JOB(asked, id) ((asked)->job_id = (id))
#endif

/* Whether two lists of nodes, such as "q[1-3]", have a node in common. */
static int overlap(char *nodes, char *others)
{
	/* the types differ between versions of Slurm */
	__auto_type list = slurm_hostlist_create(nodes);
	__auto_type other = slurm_hostlist_create(others);
	char *node;
	int found = 0;

	while (!found && (node = slurm_hostlist_shift(list))) {
		found = slurm_hostlist_find(other, node) >= 0;
		free(node);
	}
	slurm_hostlist_destroy(list);
	slurm_hostlist_destroy(other);
	return found;
}

static void print_no(uint32_t id, const char *format, const char *name, time_t until)
{
	char when[32] = "?";
	struct tm local;

	if (localtime_r(&until, &local))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &local);
	printf("%u no ", id);
	printf(format, name, when);
	putchar('\n');
}

/* Whether a job waits for a reservation: for its own to begin, or for another's nodes. */
static int is_reserved(slurm_job_info_t *job, char *nodes, reserve_info_msg_t *known)
{
	time_t now = time(NULL), end = 0;
	uint32_t i;

	if (job->time_limit < NO_VAL)
		end = now + 60 * (time_t) job->time_limit;
	for (i = 0; i < known->record_count; i++) {
		reserve_info_t *one = &known->reservation_array[i];

		if (job->resv_name && *job->resv_name) {
			/* of several, separated by commas, Slurm chooses */
			if (!strcmp(job->resv_name, one->name) && one->start_time > now) {
				print_no(job->job_id, "reservation %s begins at %s",
					 one->name, one->start_time);
				return 1;
			}
			continue;
		}
		if (one->end_time <= now || (end && one->start_time >= end))
			continue;
		if (nodes && one->node_list && overlap(nodes, one->node_list)) {
			print_no(job->job_id, "reservation %s holds its nodes until %s",
				 one->name, one->end_time);
			return 1;
		}
	}
	return 0;
}

/* The partition of a job: one that starts jobs, if there is one. */
static partition_info_t *partition_of(slurm_job_info_t *job, partition_info_msg_t *known)
{
	char *names = strdup(job->partition ? job->partition : ""), *rest = names, *name;
	partition_info_t *found = NULL;
	uint32_t i;

	while ((!found || !(found->state_up & PARTITION_SCHED)) && (name = strsep(&rest, ",")))
		for (i = 0; i < known->record_count; i++)
			if (!strcmp(known->partition_array[i].name, name))
				found = &known->partition_array[i];
	free(names);
	return found;
}

/* Print what prevents a pending job from being started, or "yes". */
static void test(slurm_job_info_t *job, partition_info_msg_t *partitions,
		 reserve_info_msg_t *reservations)
{
	partition_info_t *partition = partition_of(job, partitions);
	will_run_response_msg_t *answer = NULL;
	job_desc_msg_t asked;
	int error;

	if (partition && !(partition->state_up & PARTITION_SCHED)) {
		print_no(job->job_id, "partition %s is down", partition->name, 0);
		return;
	}
	slurm_init_job_desc_msg(&asked);
	NAME_JOB(&asked, job->job_id);
	/* as the site's job_submit plugin may want to see them */
	asked.user_id = job->user_id;
	asked.group_id = job->group_id;
	asked.partition = job->partition;
	asked.account = job->account;
	asked.time_limit = job->time_limit;
	asked.min_nodes = 1;
	errno = 0;
	if (slurm_job_will_run2(&asked, &answer) == SLURM_SUCCESS && answer) {
		if (!is_reserved(job, answer->node_list, reservations))
			printf("%u yes\n", job->job_id);
		slurm_free_will_run_response_msg(answer);
		return;
	}
	error = errno;
	/* Slurm gives the same error for nodes that no reservation holds */
	if (error == ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE && partition &&
	    is_reserved(job, partition->nodes, reservations))
		return;
	switch (error) {
	case ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE:
	case ESLURM_REQUESTED_PART_CONFIG_UNAVAILABLE:
	case ESLURM_INVALID_NODE_NAME:
	case ESLURM_INVALID_PARTITION_NAME:
	case ESLURM_NODES_BUSY:
	case ESLURM_NODE_NOT_AVAIL:
	case ESLURM_RESERVATION_NOT_USABLE:
	case ESLURM_RESERVATION_ACCESS:
	case ESLURM_RESERVATION_INVALID:
	case ESLURM_RESERVATION_BUSY:
		print_no(job->job_id, "%s", slurm_strerror(error), 0);
		break;
	default:
		printf("%u unknown %s\n", job->job_id, slurm_strerror(error));
	}
}

int main(int argc, char **argv)
{
	partition_info_msg_t *partitions = NULL;
	reserve_info_msg_t *reservations = NULL;
	job_info_msg_t *jobs;
	uint32_t id, n;
	int i;

	slurm_init(NULL);
	if (slurm_load_partitions(0, &partitions, SHOW_ALL) ||
	    slurm_load_reservations(0, &reservations)) {
		fprintf(stderr, "%s\n", slurm_strerror(errno));
		return 1;
	}
	for (i = 1; i < argc; i++) {
		id = strtoul(argv[i], NULL, 10);
		if (slurm_load_job(&jobs, job_named(id), SHOW_ALL)) {
			printf("%u unknown %s\n", id, slurm_strerror(errno));
			continue;
		}
		/* the answer about one task of an array may have them all */
		for (n = 0; n < jobs->record_count; n++)
			if (jobs->job_array[n].job_id == id)
				test(&jobs->job_array[n], partitions, reservations);
		slurm_free_job_info_msg(jobs);
	}
	return 0;
}
