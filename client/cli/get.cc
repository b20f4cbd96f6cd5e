#include "client/cli/get.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/job_json.h"
#include "client/cli/text.h"
#include "client/files/atomic_write.h"
#include "placement/evaluate.h"
#include "proto/wire/convert.h"
#include "proto/wire/json_value.h"
#include "proto/wire/placement_json.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int kMaxName = 24;

// GPU by GPU, what a layer's slots hold; a primary is marked.
std::string LayerTable(const Placement& placement, LayerId layer, const Terminal& terminal) {
  constexpr int kGpuColumns = 8;
  const Topology& shape = placement.topology();
  Table table{.heading = {"GPU", "node", "experts (* primary of several replicas)"},
              .right = {true, true, false},
              .rows = {}};
  for (int32_t gpu = 0; gpu < shape.num_gpus(); ++gpu) {
    std::string experts = placement.Holds(GpuId{gpu}) ? "" : "unusable";
    const int32_t first = shape.FirstSlotOf(GpuId{gpu}).value;
    for (int32_t slot = first; slot < first + shape.SlotsOf(GpuId{gpu}); ++slot) {
      const ExpertId expert = placement.ExpertIn(layer, SlotId{slot});
      if (expert.value < 0) continue;
      const bool marked = placement.ReplicaCount(layer, expert) > 1 &&
                          placement.PrimaryOf(layer, expert) == SlotId{slot};
      absl::StrAppend(&experts, experts.empty() ? "" : " ", expert.value, marked ? "*" : "");
    }
    table.rows.push_back({absl::StrCat(gpu), absl::StrCat(shape.NodeOf(GpuId{gpu}).value),
                          Shortened(experts, terminal.width - kGpuColumns - 4)});
  }
  return FormatTable(table, terminal);
}

std::string PlacementTable(const std::string& job, const wire::PlacementBody& body, LayerId layer,
                           const Terminal& terminal) {
  const Topology& shape = body.placement.topology();
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Placement of job ", job)), ", version ",
      body.version, "\ndigest ", body.digest.Hex(), "\n", Counted(shape.num_layers(), "layer"),
      " of ", Counted(shape.num_experts(), "expert"), " in ", Counted(shape.num_slots(), "slot"),
      " on ", Counted(shape.num_gpus(), "GPU"), ", ", Counted(shape.num_nodes(), "node"),
      ", at most ", Counted(body.placement.max_replicas(), "replica"), ", ",
      Grouped(CountDuplicates(body.placement)), " duplicates\n\n",
      Paint(terminal, Colour::kBold, absl::StrCat("Layer ", layer.value)), "\n",
      LayerTable(body.placement, layer, terminal));
}

std::string PlacementJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

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
  return {.exit_code = kOk, .out = FormatTable(table, terminal), .message = {}};
}

Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal) {
  v1::GetPlacementResponse response;
  if (const absl::Status status = AskPlacement(options.query, options.job, &response);
      !status.ok()) {
    return QueryFailure(status);
  }
  const absl::StatusOr<wire::PlacementBody> body = wire::FromProto(response.placement());
  if (!body.ok()) {
    return Failure(kError, absl::InternalError(absl::StrCat("the daemon's answer is no placement: ",
                                                            body.status().message())));
  }
  const int32_t num_layers = body->placement.topology().num_layers();
  if (options.layer < 0 || options.layer >= num_layers) {
    return UsageFailure(absl::InvalidArgumentError(absl::StrCat(
        "--layer is ", options.layer, ", job ", options.job, " has layers 0..", num_layers - 1)));
  }
  if (!options.out.empty()) {
    const absl::Status written =
        WriteFileAtomically(options.out, wire::PlacementToJson(body->placement) + "\n");
    if (!written.ok()) return Failure(kError, written);
  }
  std::string text = options.query.format == Format::kJson
                         ? PlacementJson(options.job, *body)
                         : PlacementTable(options.job, *body, LayerId{options.layer}, terminal);
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddGet(CLI::App& root, Command& command) {
  CLI::App& app = *root.add_subcommand("get", "One thing of the daemon: jobs, placement");
  app.require_subcommand(1);
  const auto jobs = std::make_shared<QueryOptions>();
  CLI::App& jobs_app = *app.add_subcommand("jobs", "Jobs and their shapes");
  AddQueryOptions(jobs_app, *jobs);
  jobs_app.callback([jobs, &command] {
    command = [jobs](const Terminal& terminal) { return RunGetJobs(*jobs, terminal); };
  });
  const auto placement = std::make_shared<GetPlacementOptions>();
  CLI::App& placement_app = *app.add_subcommand("placement", "The placement in force of a job");
  placement_app.add_option("--job", placement->job, "The job")->required()->type_name("NAME");
  placement_app.add_option("--layer", placement->layer, "Layer that the table shows [0]")
      ->type_name("L");
  placement_app.add_option("--out", placement->out, "Write the placement here")->type_name("FILE");
  AddQueryOptions(placement_app, placement->query);
  placement_app.callback([placement, &command] {
    command = [placement](const Terminal& terminal) {
      return RunGetPlacement(*placement, terminal);
    };
  });
}

}  // namespace eplb::cli
