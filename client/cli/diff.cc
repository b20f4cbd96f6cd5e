// `eplbctl diff`: what moves between two placements.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/explanation.h"
#include "client/cli/flags.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/shape_options.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "proto/wire/message_json.h"
#include "proto/wire/placement_files.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Side {
  std::string name;  // name in the output
  Placement placement;
};

// The differences between the two sides.
struct Difference {
  MoveSummary moves;
  MigrationPlan plan;
  int64_t layers_changed = 0;
  int64_t primaries_changed = 0;
  bool has_load = false;  // --load was given
  std::optional<double> balancedness_from;
  std::optional<double> balancedness_to;
  std::string note;  // on the load's file
};

absl::StatusOr<Side> ReadSide(const DiffOptions& options, const std::string& source) {
  int64_t version = -1;
  const bool numbered = source.size() > 1 && source.front() == 'v' &&
                        source.find_first_not_of("0123456789", 1) == std::string::npos;
  if (!numbered && source != "now") {
    absl::StatusOr<Placement> placement = ReadPlacementFile(source);
    if (placement.ok()) return Side{source, *std::move(placement)};
    const absl::Status error = NameForeignPlacement(source, placement.status());
    return InvalidInput(error.message());  // a file is exit 2
  }
  if (numbered && !absl::SimpleAtoi(source.substr(1), &version)) {
    return InvalidInput(source, ": no version is so high");
  }
  EPLB_ASSIGN_OR_RETURN(const std::string job, ChooseJob(options.query, options.job));
  EPLB_ASSIGN_OR_RETURN(wire::PlacementBody body, AskPlacement(options.query, job, version));
  return Side{absl::StrCat("version ", body.version), std::move(body.placement)};
}

void CountLayers(const Placement& from, const Placement& to, Difference& difference) {
  const Topology& shape = from.topology();
  for (int32_t l = 0; l < shape.num_layers(); ++l) {
    const LayerId layer{l};
    if (!(from.Layer(layer) == to.Layer(layer))) ++difference.layers_changed;
    for (int32_t e = 0; e < shape.num_experts(); ++e) {
      const ExpertId expert{e};
      if (!(from.PrimaryOf(layer, expert) == to.PrimaryOf(layer, expert))) {
        ++difference.primaries_changed;
      }
    }
  }
}

absl::StatusOr<Difference> Compare(const DiffOptions& options, const Side& from, const Side& to) {
  Difference difference;
  EPLB_ASSIGN_OR_RETURN(difference.moves, SummariseMoves(from.placement, to.placement));
  // A plan for weights of one byte, which shows the source of each transfer.
  EPLB_ASSIGN_OR_RETURN(difference.plan,
                        PlanMigration(from.placement, to.placement, {}, {.weight_bytes = 1}));
  // Transfers of a layer together; a plan has them by rounds.
  std::ranges::stable_sort(difference.plan.transfers, [](const Transfer& a, const Transfer& b) {
    return a.layer.value < b.layer.value;
  });
  CountLayers(from.placement, to.placement, difference);
  if (options.load.empty()) return difference;
  difference.has_load = true;
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  difference.note = NotesOn(options.load, file);
  EPLB_ASSIGN_OR_RETURN(const Load load, CombineWindows(file.windows, WindowRule()));
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds_before, SpeedsOfPlacement(from.placement));
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds_after, SpeedsOfPlacement(to.placement));
  EPLB_ASSIGN_OR_RETURN(
      const Evaluation before,
      InFile(options.load, Evaluate(load, from.placement, {.speeds = &speeds_before})));
  EPLB_ASSIGN_OR_RETURN(const Evaluation after,
                        Evaluate(load, to.placement, {.speeds = &speeds_after}));
  difference.balancedness_from = before.mean_balancedness;
  difference.balancedness_to = after.mean_balancedness;
  return difference;
}

std::string ToJson(const Side& from, const Side& to, const Difference& difference) {
  Json layers = Json::array();
  for (const Transfer& transfer : difference.plan.transfers) {
    if (layers.empty() || layers.back()["layer"] != transfer.layer.value) {
      layers.push_back({{"layer", transfer.layer.value}, {"transfers", Json::array()}});
    }
    layers.back()["transfers"].push_back({{"expert", transfer.expert.value},
                                          {"from", transfer.source.value},
                                          {"to", transfer.destination.value}});
  }
  const Json json = {{"from", from.name},
                     {"to", to.name},
                     {"layers_changed", difference.layers_changed},
                     {"transfers", difference.moves.transfers},
                     {"slots_changed", difference.moves.slots_changed},
                     {"primaries_changed", difference.primaries_changed},
                     {"max_per_gpu", difference.moves.max_per_gpu},
                     {"cross_node", difference.moves.cross_node},
                     {"balancedness_from", JsonOrNull(difference.balancedness_from)},
                     {"balancedness_to", JsonOrNull(difference.balancedness_to)},
                     {"layers", std::move(layers)}};
  return wire::DumpJson(json) + "\n";
}

// One line a layer: "12 (GPU 0 -> 3), 40 (GPU 7 -> 1)".
std::string TransfersText(const Difference& difference, const Terminal& terminal) {
  constexpr int kLabel = 10;
  std::string text;
  std::string line;
  const auto& transfers = difference.plan.transfers;
  const size_t shown = std::min(transfers.size(), kTransfersShown);
  for (size_t i = 0; i < shown; ++i) {
    const Transfer& transfer = transfers[i];
    absl::StrAppend(&line, line.empty() ? "" : ", ", TransferText(transfer));
    if (i + 1 < shown && transfers[i + 1].layer == transfer.layer) continue;
    absl::StrAppend(
        &text, Beside(absl::StrCat("layer ", transfer.layer.value), kLabel, line, terminal), "\n");
    line.clear();
  }
  if (shown < transfers.size()) absl::StrAppend(&text, MoreTransfersText(transfers.size()), "\n");
  return text;
}

std::string ToText(const Side& from, const Side& to, const Difference& difference,
                   const Terminal& terminal) {
  const MoveSummary& moves = difference.moves;
  std::string text = absl::StrCat(
      Heading(absl::StrCat(from.name, " -> ", to.name), terminal),
      Paragraph(absl::StrCat(Counted(difference.layers_changed, "layer"),
                             " differ: ", Counted(moves.transfers, "transfer"),
                             " between GPUs (at most ", moves.max_per_gpu,
                             " into one GPU of a layer, ", Counted(moves.cross_node, "transfer"),
                             " between nodes), ", Counted(moves.slots_changed, "slot"), " and ",
                             Counted(difference.primaries_changed, "primary slot"), " changed"),
                terminal, 0));
  if (difference.balancedness_from) {
    absl::StrAppendFormat(&text, "balancedness (mean / max GPU load) %.4f -> %.4f\n",
                          *difference.balancedness_from, *difference.balancedness_to);
  } else if (difference.has_load) {
    text += "no balancedness: the load has no tokens\n";
  }
  const std::string transfers = TransfersText(difference, terminal);
  if (!transfers.empty()) absl::StrAppend(&text, "\nExperts that a GPU gets\n", transfers);
  return text;
}

}  // namespace

Output RunDiff(const DiffOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const Side from, ReadSide(options, options.from));
  EPLB_ASSIGN_OR_RETURN(const Side to, ReadSide(options, options.to));
  EPLB_ASSIGN_OR_RETURN(const Difference difference, AsUsage(Compare(options, from, to)));
  const bool equal = from.placement == to.placement;
  std::string text = options.query.format == Format::kJson ? ToJson(from, to, difference)
                     : equal ? absl::StrCat(from.name, " and ", to.name, " are equal\n")
                             : ToText(from, to, difference, terminal);
  return {equal ? kOk : kConditionNotMet, std::move(text), difference.note};
}

void AddDiff(const Flags& root) {
  auto [flags, options] = AddCommand<DiffOptions>(
      root, "diff", "Show what moves between two placements; exit 8 if they differ", &RunDiff);
  flags
      .Text("from,--from", "FROM", options.from,
            "First placement: a file, vN (a version that the daemon keeps), or now")
      .Required();
  flags.Text("to,--to", "TO", options.to, "Second placement, in the same forms").Required();
  flags.Text("--load", "FILE", options.load,
             "Also show the balancedness under this load, as if all GPUs with experts were equally "
             "fast");
  AddOptionalLoadReading(flags, options.reading);
  AddJobOption(flags, options.job);
  AddQueryOptions(flags, options.query, {kNotFound, kConditionNotMet});
}

}  // namespace eplb::cli
