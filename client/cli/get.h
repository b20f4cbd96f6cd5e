// `eplbctl get`: jobs, ranks, placements, windows, plans and events of a daemon.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

struct GetJobsOptions {
  QueryOptions query;
  std::string job;     // empty: all
  bool ranks = false;  // JSON: with the ranks of each job, megabytes for 10,000 ranks
  bool names = false;  // only the names, one a line
};
// `get jobs`. JSON: {"jobs":[..],"jobs_hidden"}. errors: NotFound for an unknown job.
Output RunGetJobs(const GetJobsOptions& options, const Terminal& terminal);

// `get ranks`: what each rank runs and answered. JSON: {"job","run_id","ranks":[..]}.
Output RunGetRanks(const JobQuery& options, const Terminal& terminal);

struct GetPlacementOptions {
  QueryOptions query;
  std::string job;       // empty: the only one
  int64_t version = -1;  // < 0: the current one
  std::string out;       // path the placement is written to, as for --previous; may be empty
  int32_t layer = 0;     // shown by the table
};
// `get placement`. JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal);

// `get windows`: load windows, oldest first, with a line for steps that no window covers.
// JSON: {"job","windows":[..]}, with the keys of /api/v1/jobs/JOB/windows.
Output RunGetWindows(const ListQuery& options, const Terminal& terminal);

// `get plans`: decisions, newest first, and their results. JSON: {"job","plans":[..]}.
Output RunGetPlans(const ListQuery& options, const Terminal& terminal);

struct GetPlanOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int64_t plan = 0;
};
// `get plan`: one decision and its times. JSON: {"job","plan":{..}}; a trace: PlanTrace.
// errors: NotFound for a decision that is no longer kept.
Output RunGetPlan(const GetPlanOptions& options, const Terminal& terminal);

struct GetEventsOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
  int64_t after = 0;  // only events with a higher sequence
};
// `get events`: the audit log of a job, newest first. JSON: {"job","events":[..]}.
Output RunGetEvents(const GetEventsOptions& options, const Terminal& terminal);

void AddGet(const Flags& root);

}  // namespace eplb::cli
