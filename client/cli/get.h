// `eplbctl status` and `eplbctl get`: the daemon, its jobs, ranks, placements, windows, plans and
// events.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

// What the commands take; each looks at its own.
struct GetOptions {
  QueryOptions query;
  std::string job;       // empty: the only one; of `status` and `get jobs` all
  bool ranks = false;    // JSON: with the ranks of each job, megabytes for 10,000 ranks
  bool names = false;    // only the names of jobs, one a line
  int32_t limit = 20;    // length of a list
  int64_t version = -1;  // < 0: the current one
  std::string out;       // path the placement is written to, as for --previous; may be empty
  int32_t layer = 0;     // shown by the table of a placement
  int64_t plan = 0;
  int64_t after = 0;  // only events with a higher sequence
};

// The daemon, its jobs and its refusals. JSON: every field of the answer. errors: NotFound for an
// unknown job.
Output RunStatus(const GetOptions& options, const Terminal& terminal);

// JSON: {"jobs":[..],"jobs_hidden","refusals","warnings"}. errors: NotFound for an unknown job.
Output RunGetJobs(const GetOptions& options, const Terminal& terminal);

// What each rank runs and answered. JSON: {"job","run_id","ranks":[..]}.
Output RunGetRanks(const GetOptions& options, const Terminal& terminal);

// JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetOptions& options, const Terminal& terminal);

// Load windows, oldest first, with a line for steps that no window covers.
// JSON: {"job","windows":[..]}, with the keys of /api/v1/jobs/JOB/windows.
Output RunGetWindows(const GetOptions& options, const Terminal& terminal);

// Decisions, newest first, and their results. JSON: {"job","plans":[..]}.
Output RunGetPlans(const GetOptions& options, const Terminal& terminal);

// One decision and its times. JSON: {"job","plan":{..}}; a trace: PlanTrace.
// errors: NotFound for a decision that is no longer kept.
Output RunGetPlan(const GetOptions& options, const Terminal& terminal);

// The audit log of a job, newest first. JSON: {"job","events":[..]}.
Output RunGetEvents(const GetOptions& options, const Terminal& terminal);

void AddStatus(const Flags& root);
void AddGet(const Flags& root);

}  // namespace eplb::cli
