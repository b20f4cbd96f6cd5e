// `eplbctl get placement`: one layer of a placement as a table, or all of it as JSON.
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "proto/wire/messages.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
namespace {

// GPU by GPU, what a layer's slots hold; a primary is marked.
std::string LayerTable(const Placement& placement, LayerId layer, const Terminal& terminal) {
  constexpr int kGpuColumns = 8;
  const Topology& shape = placement.topology();
  Table table({">GPU", ">node", "experts (* primary of several replicas)"});
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
      ", version ", body.version, "\ndigest ", body.digest.Hex(), "\n", Paragraph(size, terminal),
      "\n", Heading(absl::StrCat("Layer ", layer.value), terminal),
      LayerTable(body.placement, layer, terminal));
}

std::string PlacementJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

}  // namespace

Output RunGetPlacement(const GetOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const std::string job, ChooseJob(options.query, options.job));
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody body,
                        AskPlacement(options.query, job, options.version));
  const int32_t num_layers = body.placement.topology().num_layers();
  if (options.layer < 0 || options.layer >= num_layers) {
    return InvalidInput("--layer is ", options.layer, ", job ", job, " has layers 0..",
                        num_layers - 1);
  }
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, wire::PlacementToJson(body.placement) + "\n"));
  return options.query.format == Format::kJson
             ? PlacementJson(job, body)
             : PlacementTable(job, body, LayerId{options.layer}, terminal);
}

}  // namespace eplb::cli
