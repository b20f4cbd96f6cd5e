// The commands of eplbctl that tests call, and what adds each command with its flags.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/command_tree.h"
#include "client/cli/explanation.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/query_client.h"

namespace eplb::v1 {
class JobStatus;
class ListPlansResponse;
}  // namespace eplb::v1

namespace eplb::cli {

// ---- status, get

// The options of these commands; each looks at its own.
struct GetOptions {
  QueryOptions query;
  std::string job;       // empty: the only one; of `status` and `get jobs` all
  std::string sort;      // column that `status` sorts by; empty: trouble first, in JSON by name
  std::string filter;    // part of the name or state of the jobs that `status` shows
  bool ranks = false;    // JSON: with the ranks of each job, megabytes for 10,000 ranks
  bool names = false;    // only the names of jobs, one a line
  int32_t limit = 20;    // length of a list
  int64_t version = -1;  // < 0: the current one
  std::string out;       // path the placement is written to, as for --previous; may be empty
  int32_t layer = 0;     // shown by the table of a placement
  int64_t plan = 0;
  int64_t after = 0;  // only events with a higher sequence
};

// Time saved, the daemon, and its jobs: one job with its figures and its last decision, several as
// a table with the troubles of the first below it. JSON: every field of the answer.
// errors: NotFound for an unknown job.
Output RunStatus(const GetOptions& options, const Terminal& terminal);

// Time saved by a job, then `heading`, then its figures, notes and last decision.
std::string JobReport(const v1::JobStatus& job, const std::string& heading,
                      const Terminal& terminal);

// JSON: {"jobs":[..],"jobs_hidden","refusals","warnings"}. errors: NotFound for an unknown job.
Output RunGetJobs(const GetOptions& options, const Terminal& terminal);

// Shows what each rank runs and answered. JSON: {"job","run_id","ranks":[..]}.
Output RunGetRanks(const GetOptions& options, const Terminal& terminal);

// JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetOptions& options, const Terminal& terminal);

// Load windows, oldest first, with a line for steps that no window covers.
// JSON: {"job","windows":[..]}, with the keys of /api/v1/jobs/JOB/windows.
Output RunGetWindows(const GetOptions& options, const Terminal& terminal);

// Decisions, newest first, and their results. JSON: {"job","plans":[..]}.
Output RunGetPlans(const GetOptions& options, const Terminal& terminal);

std::string PlansText(const v1::ListPlansResponse& response, const Terminal& terminal);

// One decision and its times. JSON: {"job","plan":{..}}; a trace: PlanTrace.
// errors: NotFound for a decision that is no longer kept.
Output RunGetPlan(const GetOptions& options, const Terminal& terminal);

// The audit log of a job, newest first. JSON: {"job","events":[..]}.
Output RunGetEvents(const GetOptions& options, const Terminal& terminal);

// ---- explain, top, doctor, diff

struct ExplainOptions {
  QueryOptions query;
  std::string job;      // empty: the only one
  int32_t layer = -1;   // one layer's GPUs; < 0: all layers
  int32_t expert = -1;  // one expert of --layer
};

// The job: its state, its settings, the decision behind the current placement, the newest decision,
// the candidates that its policy chooses among, its worst layers. A layer: its GPUs' loads before
// and after that decision, and what moved. An expert: its load, its replicas and their GPUs.
// JSON: ExplanationToJson.
Output RunExplain(const ExplainOptions& options, const Terminal& terminal);

// State, balancedness, the GPU loads of all layers together beside those of the static layout, the
// newest decision, and the layers. JSON: as `explain`.
// The key s changes the order of the layers.
struct TopOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  // Shared with the thread that reads keys.
  std::shared_ptr<std::atomic<LayerOrder>> order =
      std::make_shared<std::atomic<LayerOrder>>(LayerOrder::kWorst);
};
Output RunTop(const TopOptions& options, const Terminal& terminal);

struct DoctorOptions {
  QueryOptions query;
  std::string job;      // empty: all
  std::string run;      // a folder of ranks' logs, which is checked instead of a daemon
  bool strict = false;  // a warning is exit 8, too
  bool all = false;     // checks that passed are listed, too
};

// Exit 8 if a check failed. JSON: {"healthy","checks":[{"scope","check","result","detail"}]}.
Output RunDoctor(const DoctorOptions& options, const Terminal& terminal);

struct DiffOptions {
  QueryOptions query;
  std::string job;  // job whose versions are compared; empty: the only one
  // Each a file, "vN" (version N, while the daemon keeps it) or "now" (the current placement).
  std::string from;
  std::string to;
  std::string load;  // file: balancedness under this load is shown, too; may be empty
  LoadReading reading = {};
};

// Exit 0 if both are equal, 8 if they differ. JSON: {"from","to","layers_changed","transfers",
// "slots_changed","primaries_changed","max_per_gpu","cross_node","balancedness_from",
// "balancedness_to","layers":[{"layer","transfers":[{"expert","from","to"}]}]}; GPUs in transfers;
// the two balancedness are null without --load, and for a load without tokens.
Output RunDiff(const DiffOptions& options, const Terminal& terminal);

// ---- report

struct ReportOptions {
  QueryOptions query;  // daemon of `job`, and the format of every report
  std::string job;     // reported by the daemon in place of a directory; empty: the directory
  std::string directory;
  std::string events;          // path of the events file; empty: directory/events.json
  std::string out;             // path for the JSON form, may be empty
  std::string html;            // path for the web page, may be empty
  int64_t window_steps = 50;   // length of a window of the hindsight line and of the page
  int64_t min_rebalances = 0;  // fewer are a problem
  // A smaller gain of balancedness over that without EPLB is a problem [0, 1]; absent: no limit.
  std::optional<double> min_gain;
};

// A job's report has the time that it saved, its state, and its newest decisions. For a directory,
// Format::kTrace prints only the times that the ranks logged, which needs no run.json, and
// checks nothing. Exit 0 if everything holds, 8 if an invariant is broken, a figure differs or a
// byte was not verified, 2 if the directory cannot be read as a run, 1 if a file cannot be written.
Output RunReportCommand(const ReportOptions& options, const Terminal& terminal);

// ---- pause, resume, rebalance, rollback, forget, set

// The options of these commands; all of them use the members before `force`.
struct ChangeOptions {
  QueryOptions query;
  std::string job;              // empty: the only one
  std::string request_id;       // empty: drawn at random
  int64_t expect_version = -1;  // < 0: the version that is current just before
  std::string comment;
  bool dry_run = false;  // ask what would happen, change nothing
  bool force = false;    // rebalance even if it does not pay
  bool wait = false;     // for the end of the decision
  std::string wait_timeout = "10m";
  int64_t to = -1;                         // version; < 0: the one before the newest rebalance
  std::vector<std::string> settings = {};  // KEY=VALUE
};

// Stops proposals until `resume`.
Output RunPause(const ChangeOptions& options);

// Ends a pause and a QUARANTINE.
Output RunResume(const ChangeOptions& options);

// Decides now instead of at the next policy.every_steps. With `wait` the output is the decision, as
// `get plans` shows it, and the exit code 8 unless it was committed. With `dry_run` it waits, too:
// nothing is proposed, and the exit code is 8 unless the policy would change something.
Output RunRebalance(const ChangeOptions& options);

// Proposes an earlier placement and pauses the job.
Output RunRollback(const ChangeOptions& options);

// Removes a job without a connected rank; its audit log stays. The job must be named.
Output RunForget(const ChangeOptions& options);

// Changes a job's own settings; the others stay. A setting may have its table, as in the daemon's
// configuration: policy.every_steps=100.
Output RunSetPolicy(const ChangeOptions& options);

// ---- flags

void AddPlan(const Flags& root);
void AddReplay(const Flags& root);
void AddSweep(const Flags& root);
void AddJoin(const Flags& root);
void AddLint(const Flags& root);
void AddConvert(const Flags& root);
void AddReport(const Flags& root);
void AddStatus(const Flags& root);
void AddGet(const Flags& root);
void AddExplain(const Flags& root);
void AddDiff(const Flags& root);
void AddTop(const Flags& root);
void AddDoctor(const Flags& root);
void AddWait(const Flags& root);
void AddRebalance(const Flags& root);
void AddPause(const Flags& root);
void AddResume(const Flags& root);
void AddRollback(const Flags& root);
void AddSet(const Flags& root);
void AddForget(const Flags& root);
void AddContext(const Flags& root);

// Commands about the tree of commands itself.
void AddHelp(const Flags& root, const CommandTree& tree);
void AddCompletion(const Flags& root, const CommandTree& tree);
void AddMan(const Flags& root, const CommandTree& tree);

}  // namespace eplb::cli
