#include "client/cli/daemon/get_placement.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/text.h"
#include "client/files/atomic_write.h"
#include "placement/evaluate.h"
#include "proto/wire/json_value.h"
#include "proto/wire/placement_json.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

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
  const std::string size = absl::StrCat(
      Counted(shape.num_layers(), "layer"), " of ", Counted(shape.num_experts(), "expert"), " in ",
      Counted(shape.num_slots(), "slot"), " on ", Counted(shape.num_gpus(), "GPU"), ", ",
      Counted(shape.num_nodes(), "node"), ", at most ",
      Counted(body.placement.max_replicas(), "replica"), ", ",
      Counted(CountDuplicates(body.placement), "duplicate"));
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Placement of job ", Printable(job))),
      ", version ", body.version, "\ndigest ", body.digest.Hex(), "\n",
      Wrapped(size, terminal.width, 2), "\n\n",
      Paint(terminal, Colour::kBold, absl::StrCat("Layer ", layer.value)), "\n",
      LayerTable(body.placement, layer, terminal));
}

std::string PlacementJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

}  // namespace

Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  const absl::StatusOr<wire::PlacementBody> body =
      AskPlacement(options.query, *job, options.version);
  if (!body.ok()) return QueryFailure(body.status());
  const int32_t num_layers = body->placement.topology().num_layers();
  if (options.layer < 0 || options.layer >= num_layers) {
    return UsageFailure(absl::InvalidArgumentError(absl::StrCat(
        "--layer is ", options.layer, ", job ", *job, " has layers 0..", num_layers - 1)));
  }
  if (!options.out.empty()) {
    const absl::Status written =
        WriteFileAtomically(options.out, wire::PlacementToJson(body->placement) + "\n");
    if (!written.ok()) return Failure(kError, written);
  }
  std::string text = options.query.format == Format::kJson
                         ? PlacementJson(*job, *body)
                         : PlacementTable(*job, *body, LayerId{options.layer}, terminal);
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddGetPlacement(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlacementOptions>();
  CLI::App& app = *get.add_subcommand("placement", "A placement of a job: the one in force");
  AddJobOption(app, options->job);
  app.add_option("--version", options->version, "An earlier version, while it is kept")
      ->check(&CheckNotNegative)
      ->type_name("V");
  app.add_option("--layer", options->layer, "Layer that the table shows [0]")->type_name("L");
  app.add_option("--out", options->out, "Write the placement here")->type_name("FILE");
  AddQueryOptions(app, options->query, {kNotFound});
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunGetPlacement(*options, terminal); };
  });
}

}  // namespace eplb::cli
