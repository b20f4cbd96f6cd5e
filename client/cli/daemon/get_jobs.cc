#include "client/cli/daemon/get_jobs.h"

#include <memory>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/job_json.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kMaxName = 24;

}  // namespace

Output RunGetJobs(const QueryOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskStatus(options, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.format == Format::kJson) {
    return {.exit_code = kOk, .out = JobsToJson(response), .message = {}};
  }
  Table table{.heading = {"job", "incarnation", "layers", "experts", "slots", "GPUs", "nodes",
                          "ranks", "version"},
              .right = {false, false, true, true, true, true, true, true, true},
              .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    const v1::Shape& shape = job.shape();
    table.rows.push_back({Shortened(Printable(job.job()), kMaxName),
                          Shortened(Printable(job.incarnation()), kMaxName / 2),
                          absl::StrCat(shape.num_layers()), absl::StrCat(shape.num_experts()),
                          absl::StrCat(shape.num_slots()), absl::StrCat(shape.num_gpus()),
                          absl::StrCat(shape.num_nodes()), absl::StrCat(job.world_size()),
                          absl::StrCat(job.version())});
  }
  const bool none_visible = response.jobs().empty() && response.jobs_hidden();
  return {.exit_code = kOk,
          .out = FormatTable(table, terminal),
          .message = none_visible ? kNoVisibleJob : ""};
}

void AddGetJobs(CLI::App& get, Command& command) {
  const auto options = std::make_shared<QueryOptions>();
  CLI::App& app = *get.add_subcommand("jobs", "Jobs and their shapes");
  AddQueryOptions(app, *options);
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetJobs(*options, terminal); });
}

}  // namespace eplb::cli
