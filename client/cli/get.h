// `eplbctl get`: jobs, ranks, placement, plans and events of a daemon.
#ifndef EPLB_CLIENT_CLI_GET_H_
#define EPLB_CLIENT_CLI_GET_H_

#include <cstdint>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

// `eplbctl get jobs`.

struct GetJobsOptions {
  QueryOptions query;
  std::string job;     // empty: all
  bool ranks = false;  // JSON: with the ranks of each job, which are megabytes at 10,000 ranks
  bool names = false;  // only the names, one a line
};

// JSON: {"jobs":[..],"jobs_hidden"}. errors: NotFound for a job that the daemon does not have.
Output RunGetJobs(const GetJobsOptions& options, const Terminal& terminal);

void AddGetJobs(CLI::App& get, Command& command);

// `eplbctl get ranks`.

struct GetRanksOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
};

// What each rank runs and answered. JSON: {"job","run_id","ranks":[..]}.
Output RunGetRanks(const GetRanksOptions& options, const Terminal& terminal);

void AddGetRanks(CLI::App& get, Command& command);

// `eplbctl get placement`.

struct GetPlacementOptions {
  QueryOptions query;
  std::string job;       // empty: the only one
  int64_t version = -1;  // the one in force
  std::string out;  // path that the placement is written to, as a file for --previous; may be empty
  int32_t layer = 0;  // that the table shows
};

// As the daemon has it. JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal);

void AddGetPlacement(CLI::App& get, Command& command);

// `eplbctl get plans`.

struct GetPlansOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
};

// Decisions, newest first, and what became of them. JSON: {"job","plans":[..]}.
Output RunGetPlans(const GetPlansOptions& options, const Terminal& terminal);

void AddGetPlans(CLI::App& get, Command& command);

// `eplbctl get plan`.

struct GetPlanOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int64_t plan = 0;
};

// One decision, and when the daemon saw what of it. JSON: {"job","plan":{..}}; a trace: PlanTrace.
// errors: NotFound for a decision that is no longer kept.
Output RunGetPlan(const GetPlanOptions& options, const Terminal& terminal);

void AddGetPlan(CLI::App& get, Command& command);

// `eplbctl get events`.

struct GetEventsOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
  int64_t after = 0;  // only events with a higher sequence
};

// The audit log of a job, newest first: {"job","events":[..]} as JSON.
Output RunGetEvents(const GetEventsOptions& options, const Terminal& terminal);

void AddGetEvents(CLI::App& get, Command& command);

// `eplbctl get`: one thing of the daemon. Each thing has a file of its own, get_*.

void AddGet(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_GET_H_
