#include "client/cli/daemon/get_jobs.h"

#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/job_json.h"
#include "client/cli/daemon/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"
#include "proto/wire/names.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kMaxName = 24;

Table JobNameTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table{.heading = {"job", "state", "policy", "layers", "experts", "slots", "GPUs", "nodes",
                          "ranks", "version", "launch", "incarnation"},
              .right = {false, false, false, true, true, true, true, true, true, true, true, false},
              .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    const v1::Shape& shape = job.shape();
    const std::string policy = Printable(job.policy().name());
    table.rows.push_back({Shortened(Printable(job.job()), kMaxName),
                          Shortened(StateText(job), kMaxName), policy.empty() ? "-" : policy,
                          absl::StrCat(shape.num_layers()), absl::StrCat(shape.num_experts()),
                          absl::StrCat(shape.num_slots()), absl::StrCat(shape.num_gpus()),
                          absl::StrCat(shape.num_nodes()), absl::StrCat(job.world_size()),
                          absl::StrCat(job.version()), LaunchText(job),
                          Shortened(Printable(job.incarnation()), kMaxName / 2)});
  }
  constexpr std::string_view kOptional[] = {"incarnation", "launch", "nodes", "policy", "version"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// For scripts and completion: a shell may expand what it reads, so only names that a daemon of ours
// can have are told.
std::string Names(const v1::GetStatusResponse& response) {
  std::string text;
  for (const v1::JobStatus& job : response.jobs()) {
    if (!wire::CheckPlainName("job", job.job()).ok()) continue;
    absl::StrAppend(&text, job.job(), "\n");
  }
  return text;
}

absl::Status AskJobs(const GetJobsOptions& options, v1::GetStatusResponse* response) {
  if (options.job.empty()) return AskStatus(options.query, response);
  v1::GetJobRequest request;
  request.set_job(options.job);
  return Ask(options.query, request, response->add_jobs());
}

}  // namespace

Output RunGetJobs(const GetJobsOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskJobs(options, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.names) return {.exit_code = kOk, .out = Names(response), .message = {}};
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = JobsToJson(response, options.ranks), .message = {}};
  }
  const bool none_visible = response.jobs().empty() && response.jobs_hidden();
  return {.exit_code = kOk,
          .out = FormatTable(JobNameTable(response, terminal), terminal),
          .message = none_visible ? kNoVisibleJob : ""};
}

void AddGetJobs(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetJobsOptions>();
  CLI::App& app = *get.add_subcommand("jobs", "Jobs, their states, policies and shapes");
  AddJobOption(app, options->job, "Only this job [all]");
  app.add_flag("--names", options->names, "Only the names, one a line");
  app.add_flag("--ranks", options->ranks, "With -o json: every rank of every job, too");
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetJobs(*options, terminal); });
}

}  // namespace eplb::cli
