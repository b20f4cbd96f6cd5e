// `eplbctl lint`: lists every rule that a placement file breaks.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/shape_options.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_rules.h"

namespace eplb::cli {
namespace {

struct LintOptions {
  std::string placement;
  std::optional<int32_t> gpus;     // number of GPUs, for another system's file without one
  std::vector<std::string> loads;  // paths: layers and experts must be the same
  LoadReading reading;
  std::string against;  // path of another placement, may be empty: the shape must be the same
  bool strict = false;  // duplicates on a GPU break a rule
};

// A file of ours as written, or one of another system as its reader understands it.
struct LintSubject {
  PlacementFormat format;
  wire::JsonValue object;  // this project's own format, however broken
  PlacementParts peers;    // another system's format

  bool is_ours() const { return format.name == "eplb"; }
  // Number of experts in another system's file. An id from S on is no expert's.
  int64_t num_experts() const;
  // A number of the shape, by its key in our files. errors: InvalidArgument if one of ours cannot
  // be read, NotFound if another system's file does not have the number.
  absl::StatusOr<int64_t> ShapeNumber(std::string_view key) const;
};

int64_t LintSubject::num_experts() const {
  return peers.num_experts.value_or(
      std::min<int64_t>(int64_t{peers.slots.maxCoeff()} + 1, peers.slots.cols()));
}

absl::StatusOr<int64_t> LintSubject::ShapeNumber(std::string_view key) const {
  if (is_ours()) return wire::GetInteger(object, key);
  if (key == "num_layers") return int64_t{peers.slots.rows()};
  if (key == "num_slots") return int64_t{peers.slots.cols()};
  if (key == "num_logical_experts") return num_experts();
  std::optional<int32_t> number;
  if (key == "num_gpus") number = peers.frame.num_gpus;
  if (key == "num_nodes") number = peers.frame.num_nodes;
  if (key == "num_groups") number = peers.frame.num_groups;
  if (number) return int64_t{*number};
  return absl::NotFoundError(std::string(key));
}

// The content tells the format. errors: InvalidArgument, beginning with `path`.
absl::StatusOr<LintSubject> ReadLintSubject(const std::string& path) {
  constexpr std::string_view kFormat = "eplb.placement.v1";
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  LintSubject subject;
  EPLB_ASSIGN_OR_RETURN(subject.format, DetectPlacementFormat(path, text));
  if (!subject.is_ours()) {
    EPLB_ASSIGN_OR_RETURN(subject.peers, subject.format.parse(path, text));
    return subject;
  }
  EPLB_ASSIGN_OR_RETURN(wire::JsonValue object, InFile(path, wire::ParseJson(text)));
  const wire::JsonValue* format = object.Find("format");
  if (format == nullptr || format->kind != wire::JsonValue::Kind::kString ||
      format->text != kFormat) {
    return InvalidInput(
        path, ": is no placement, expected a JSON object with \"format\":\"eplb.placement.v1\"");
  }
  subject.object = std::move(object);
  return subject;
}

constexpr std::string_view kShapeKeys[] = {"num_layers", "num_logical_experts", "num_slots",
                                           "num_gpus",   "num_nodes",           "num_groups"};

// The rules on the map of slots, which is all that other systems' files share.
wire::Findings CheckPeers(const LintSubject& subject, std::optional<int32_t> gpus) {
  const IndexMatrix& slots = subject.peers.slots;
  const std::vector<int64_t> cells(slots.data(), slots.data() + slots.size());
  wire::FileParts parts;
  parts.num_layers = slots.rows();
  parts.num_experts = subject.num_experts();
  parts.num_slots = slots.cols();
  parts.num_gpus = subject.peers.frame.num_gpus ? subject.peers.frame.num_gpus : gpus;
  parts.slots = wire::FileMatrix{&cells, slots.rows(), slots.cols()};
  wire::Findings findings;
  const int64_t num_gpus = parts.num_gpus.value_or(1);
  if (num_gpus < 1 || num_gpus > slots.cols() ||
      (slots.cols() % num_gpus != 0 && !subject.format.holds_unequal_gpus)) {
    findings.broken.push_back(absl::StrCat(slots.cols(), " slots on ", num_gpus, " GPUs: in ",
                                           std::string(subject.format.name),
                                           " all GPUs hold the same number of slots"));
  } else if (parts.num_gpus) {
    wire::NumberGpus(parts);
  }
  {
    wire::Rule empty(findings.broken);
    for (size_t i = 0; !subject.format.holds_unusable_slots && i < cells.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      if (cells[i] != -1) continue;
      empty.Add("layer ", place / slots.cols(), " slot ", place % slots.cols(), " holds no expert");
    }
  }
  wire::CheckSlotMap(parts, findings);
  return findings;
}

// The note on another system's file: its format, its layer numbers, and what its reader dropped.
std::string PeersNote(const std::string& path, const LintSubject& subject) {
  if (subject.is_ours()) return {};
  std::vector<std::string> notes = subject.peers.notes;
  const LayerNumbers& layers = subject.peers.layers;
  notes.insert(notes.begin(), absl::StrCat("is read as ", std::string(subject.format.name)));
  if (!layers.empty()) {
    notes.push_back(absl::StrCat("layers are counted from 0, they are the model's layers ",
                                 LayerNumbersText(layers)));
  }
  return absl::StrCat("note: ", path, ": ", absl::StrJoin(notes, "; "));
}

// Numbers of the shape that two placements do not share. A number that cannot be read is told by
// the rules on the first, and here on the second.
absl::Status CompareShapes(const LintSubject& subject, const LintOptions& options,
                           std::vector<std::string>& broken) {
  EPLB_ASSIGN_OR_RETURN(const LintSubject other, ReadLintSubject(options.against));
  for (const std::string_view key : kShapeKeys) {
    const absl::StatusOr<int64_t> theirs = other.ShapeNumber(key);
    if (absl::IsNotFound(theirs.status())) continue;
    if (!theirs.ok()) return InFile(options.against, theirs.status());
    const absl::StatusOr<int64_t> ours = subject.ShapeNumber(key);
    if (!ours.ok() || *ours == *theirs) continue;
    broken.push_back(
        absl::StrCat(std::string(key), " is ", *ours, ", in ", options.against, " ", *theirs));
  }
  return absl::OkStatus();
}

// "balancedness 0.9512 under chat.json", of the sum of the load's windows.
absl::StatusOr<std::string> BalanceUnder(const std::string& placement, const std::string& path,
                                         const LoadFile& file) {
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementWithShares read, ReadPlacementWithShares(placement));
  EPLB_ASSIGN_OR_RETURN(const Load load, InFile(path, CombineWindows(file.windows, WindowRule{})));
  const RealMatrix* const shares = read.replica_share.has_value() ? &*read.replica_share : nullptr;
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, SpeedsOfPlacement(read.placement));
  EPLB_ASSIGN_OR_RETURN(const Evaluation evaluation,
                        Evaluate(load, read.placement, {.speeds = &speeds, .shares = shares}));
  return absl::StrCat("balancedness ", FigureText(evaluation.mean_balancedness), " under ", path);
}

// note: receives the messages about the file, and the balancedness if there are several loads.
absl::Status CompareWithLoad(const LintSubject& subject, const LintOptions& options,
                             const std::string& path, std::vector<std::string>& broken,
                             std::string& note) {
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(path, options.reading));
  note = JoinMessages({note, NotesOn(path, file)});
  const Load& load = file.windows.front().load;
  const std::pair<std::string_view, int64_t> numbers[] = {
      {"num_layers", load.num_layers()}, {"num_logical_experts", load.num_experts()}};
  for (const auto& [key, theirs] : numbers) {
    const absl::StatusOr<int64_t> ours = subject.ShapeNumber(key);
    if (!ours.ok() || *ours == theirs) continue;
    broken.push_back(
        absl::StrCat(std::string(key), " is ", *ours, ", the load in ", path, " has ", theirs));
  }
  if (options.loads.size() == 1 || !subject.is_ours() || !broken.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const std::string balance, BalanceUnder(options.placement, path, file));
  note = JoinMessages({note, balance});
  return absl::OkStatus();
}

// --gpus is only for a file that has no number of GPUs.
absl::Status CheckFlagGpus(const LintSubject& subject, const LintOptions& options) {
  if (!options.gpus) return absl::OkStatus();
  const absl::StatusOr<int64_t> own = subject.ShapeNumber("num_gpus");
  if (own.ok() && *own != *options.gpus) {
    return InFile(options.placement,
                  InvalidInput("the file has ", *own, ", --gpus is ", *options.gpus));
  }
  const absl::StatusOr<int64_t> slots = subject.ShapeNumber("num_slots");
  if (!slots.ok() || (*options.gpus >= 1 && *options.gpus <= *slots)) return absl::OkStatus();
  return InvalidInput("--gpus is ", *options.gpus, ", expected 1..", *slots,
                      ", the slots of a layer");
}

// note: receives the messages about the files and about the shape.
absl::StatusOr<wire::Findings> Lint(const LintOptions& options, std::string& note) {
  EPLB_ASSIGN_OR_RETURN(const LintSubject subject, ReadLintSubject(options.placement));
  EPLB_RETURN_IF_ERROR(CheckFlagGpus(subject, options));
  wire::Findings findings =
      subject.is_ours() ? wire::CheckPlacement(subject.object) : CheckPeers(subject, options.gpus);
  note = PeersNote(options.placement, subject);
  if (!options.against.empty()) {
    EPLB_RETURN_IF_ERROR(CompareShapes(subject, options, findings.broken));
  }
  for (const std::string& path : options.loads) {
    EPLB_RETURN_IF_ERROR(CompareWithLoad(subject, options, path, findings.broken, note));
  }
  const absl::StatusOr<int64_t> slots = subject.ShapeNumber("num_slots");
  const absl::StatusOr<int64_t> gpus = subject.ShapeNumber("num_gpus");
  if (absl::IsNotFound(gpus.status()) && !options.gpus) {
    note = JoinMessages({note,
                         "note: the file has no number of GPUs, give --gpus: two replicas of an "
                         "expert on one GPU were not looked for"});
  }
  if (findings.broken.empty() && slots.ok() && gpus.ok()) {
    note = JoinMessages({note, UnequalSlotsNote(*slots, *gpus)});
  }
  if (options.strict) {
    findings.broken.insert(findings.broken.end(), findings.warnings.begin(),
                           findings.warnings.end());
    findings.warnings.clear();
  }
  return findings;
}

// One broken rule per line on stdout, beginning with the file's name; warnings begin with
// "warning:".
// Exit 8 if a rule is broken, 0 if none, 2 if a file cannot be read as what it should be.
Output RunLint(const LintOptions& options) {
  std::string note;
  EPLB_ASSIGN_OR_RETURN(const wire::Findings findings, AsUsage(Lint(options, note)));
  const bool kept = findings.broken.empty();
  std::string text;
  for (const std::string& sentence : findings.broken) {
    absl::StrAppend(&text, options.placement, ": ", sentence, "\n");
  }
  for (const std::string& sentence : findings.warnings) {
    absl::StrAppend(&text, "warning: ", options.placement, ": ", sentence, "\n");
  }
  const std::string verdict =
      absl::StrCat(options.placement, kept ? ": no rule is broken" : ": broken",
                   findings.warnings.empty() ? "" : ", with warnings");
  return {kept ? kOk : kConditionNotMet, std::move(text), JoinMessages({verdict, note})};
}

}  // namespace

void AddLint(const Flags& root) {
  auto [flags, options] = AddCommand<LintOptions>(
      root, "lint", "List each rule that a placement file breaks", &RunLint);
  flags
      .Text("placement,--placement", "FILE", options.placement,
            "Placement file, in any format of `convert`")
      .Required();
  AddInteger(flags, "--gpus", "G", options.gpus,
             "Number of GPUs, if another system's file has none");
  flags.Texts("--load", "FILE", options.loads,
              "Load whose layers and experts must be the same; of several, the balancedness under "
              "each is printed to stderr, as if all GPUs with experts were equally fast");
  AddOptionalLoadReading(flags, options.reading);
  flags.Text("--against", "FILE", options.against, "Placement whose shape must be the same");
  flags.Switch("--strict", options.strict,
               "Treat two replicas of an expert on one GPU as a broken rule");
  flags.SetFooter(
      "Examples:\n"
      "  eplbctl lint --placement next.json --against now.json --strict\n"
      "  eplbctl lint --placement balancer.yaml --gpus 8\n"
      "Exit codes: 0 no rule is broken, 1 error, 2 wrong flag or unusable input,\n"
      "  8 some are.");
}

}  // namespace eplb::cli
