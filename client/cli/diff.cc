#include "client/cli/diff.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/files.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "client/cli/explain_text.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/placement_content.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "proto/wire/message_json.h"
#include "proto/wire/placement_files.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Side {
  std::string name;  // as told to the user
  Placement placement;
};

// What differs between the two sides.
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
    return absl::InvalidArgumentError(error.message());  // a file is exit 2
  }
  if (numbered && !absl::SimpleAtoi(source.substr(1), &version)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": no version is so high"));
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
  // Weights alone, of one byte: where each would come from.
  EPLB_ASSIGN_OR_RETURN(difference.plan,
                        PlanMigration(from.placement, to.placement, {}, {.weight_bytes = 1}));
  // Those of a layer together; a plan has them by rounds.
  std::stable_sort(
      difference.plan.transfers.begin(), difference.plan.transfers.end(),
      [](const Transfer& a, const Transfer& b) { return a.layer.value < b.layer.value; });
  CountLayers(from.placement, to.placement, difference);
  if (options.load.empty()) return difference;
  difference.has_load = true;
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  difference.note = NotesOn(options.load, file);
  EPLB_ASSIGN_OR_RETURN(const Load load, CombineWindows(file.windows, WindowRule()));
  const absl::StatusOr<Evaluation> before = Evaluate(load, from.placement);
  if (!before.ok()) return InFile(options.load, before.status());
  EPLB_ASSIGN_OR_RETURN(const Evaluation after, Evaluate(load, to.placement));
  difference.balancedness_from = before->mean_balancedness;
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
      Paint(terminal, Colour::kBold, absl::StrCat(from.name, " -> ", to.name)), "\n",
      Wrapped(absl::StrCat(Counted(difference.layers_changed, "layer"),
                           " differ: ", Counted(moves.transfers, "transfer"),
                           " between GPUs (at most ", moves.max_per_gpu,
                           " into one GPU of a layer, ", Counted(moves.cross_node, "transfer"),
                           " between nodes), ", Counted(moves.slots_changed, "slot"), " and ",
                           Counted(difference.primaries_changed, "primary slot"), " changed"),
              terminal.width, 0),
      "\n");
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

Output SideFailure(const absl::Status& status) {
  // A file is unusable input; what the daemon says has its own codes.
  return absl::IsInvalidArgument(status) ? UsageFailure(status) : QueryFailure(status);
}

}  // namespace

Output RunDiff(const DiffOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Side> from = ReadSide(options, options.from);
  if (!from.ok()) return SideFailure(from.status());
  const absl::StatusOr<Side> to = ReadSide(options, options.to);
  if (!to.ok()) return SideFailure(to.status());
  const absl::StatusOr<Difference> difference = Compare(options, *from, *to);
  if (!difference.ok()) return UsageFailure(difference.status());
  if (from->placement == to->placement) {
    const bool json = options.query.format == Format::kJson;
    return {.exit_code = kOk,
            .out = json ? ToJson(*from, *to, *difference)
                        : absl::StrCat(from->name, " and ", to->name, " are equal\n"),
            .message = difference->note};
  }
  return {.exit_code = kConditionNotMet,
          .out = options.query.format == Format::kJson ? ToJson(*from, *to, *difference)
                                                       : ToText(*from, *to, *difference, terminal),
          .message = difference->note};
}

void AddDiff(CLI::App& root, Command& command) {
  const auto options = std::make_shared<DiffOptions>();
  CLI::App& app =
      *root.add_subcommand("diff", "What moves between two placements? Exit 8 when they differ");
  app.add_option("from", options->from, "A file, vN (a version the daemon keeps), or now")
      ->required()
      ->type_name("FROM");
  app.add_option("to", options->to, "Likewise")->required()->type_name("TO");
  app.add_option("--load", options->load, "Also print balancedness under this load")
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  NeedLoad(app);
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound, kConditionNotMet});
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunDiff(*options, terminal); };
  });
}

}  // namespace eplb::cli
