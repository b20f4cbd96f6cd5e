#include "client/cli/lint.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/lint_rules.h"
#include "client/files/load_file.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/json_value.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr std::string_view kFormat = "eplb.placement.v1";
constexpr std::string_view kShapeKeys[] = {"num_layers", "num_logical_experts", "num_slots",
                                           "num_gpus",   "num_nodes",           "num_groups"};

// Anything that says it is a placement, however broken.
absl::StatusOr<wire::JsonValue> ReadAsPlacement(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  absl::StatusOr<wire::JsonValue> object = wire::ParseJson(text);
  if (!object.ok()) return InFile(path, object.status());
  const wire::JsonValue* format = object->Find("format");
  if (format == nullptr || format->kind != wire::JsonValue::Kind::kString ||
      format->text != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is no placement, expected a JSON object with \"format\":\"eplb.placement.v1\""));
  }
  return object;
}

// Numbers of the shape that two placements do not share. A number that cannot be read is told by
// the rules on the first, and here on the second.
absl::Status CompareShapes(const wire::JsonValue& object, const LintOptions& options,
                           std::vector<std::string>& broken) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue other, ReadAsPlacement(options.against));
  for (const std::string_view key : kShapeKeys) {
    const absl::StatusOr<int64_t> theirs = wire::GetInteger(other, key);
    if (!theirs.ok()) return InFile(options.against, theirs.status());
    const absl::StatusOr<int64_t> ours = wire::GetInteger(object, key);
    if (!ours.ok() || *ours == *theirs) continue;
    broken.push_back(
        absl::StrCat(std::string(key), " is ", *ours, ", in ", options.against, " ", *theirs));
  }
  return absl::OkStatus();
}

absl::Status CompareWithLoad(const wire::JsonValue& object, const LintOptions& options,
                             std::vector<std::string>& broken, std::string& note) {
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  note = NotesOn(options.load, file);
  const Load& load = file.windows.front().load;
  const std::pair<std::string_view, int64_t> numbers[] = {
      {"num_layers", load.num_layers()}, {"num_logical_experts", load.num_experts()}};
  for (const auto& [key, theirs] : numbers) {
    const absl::StatusOr<int64_t> ours = wire::GetInteger(object, key);
    if (!ours.ok() || *ours == theirs) continue;
    broken.push_back(absl::StrCat(std::string(key), " is ", *ours, ", the load in ", options.load,
                                  " has ", theirs));
  }
  return absl::OkStatus();
}

// note: what is said of the load's file.
absl::StatusOr<Findings> Lint(const LintOptions& options, std::string& note) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, ReadAsPlacement(options.placement));
  Findings findings = CheckPlacement(object);
  if (!options.against.empty()) {
    EPLB_RETURN_IF_ERROR(CompareShapes(object, options, findings.broken));
  }
  if (!options.load.empty()) {
    EPLB_RETURN_IF_ERROR(CompareWithLoad(object, options, findings.broken, note));
  }
  if (options.strict) {
    findings.broken.insert(findings.broken.end(), findings.warnings.begin(),
                           findings.warnings.end());
    findings.warnings.clear();
  }
  return findings;
}

}  // namespace

Output RunLint(const LintOptions& options) {
  std::string note;
  const absl::StatusOr<Findings> findings = Lint(options, note);
  if (!findings.ok()) return UsageFailure(findings.status());
  Output output;
  for (const std::string& sentence : findings->broken) {
    absl::StrAppend(&output.out, options.placement, ": ", sentence, "\n");
  }
  for (const std::string& sentence : findings->warnings) {
    absl::StrAppend(&output.out, "warning: ", options.placement, ": ", sentence, "\n");
  }
  output.exit_code = findings->broken.empty() ? kOk : kConditionNotMet;
  output.message = JoinMessages(
      absl::StrCat(options.placement, findings->broken.empty() ? ": no rule is broken" : ": broken",
                   findings->warnings.empty() ? "" : ", with warnings"),
      note);
  return output;
}

void AddLint(CLI::App& root, Command& command) {
  const auto options = std::make_shared<LintOptions>();
  CLI::App& app = *root.add_subcommand("lint", "Say every rule that a placement file breaks");
  app.add_option("--placement", options->placement, "The placement")->required()->type_name("FILE");
  app.add_option("--load", options->load, "A load whose layers and experts must be the same")
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  app.add_option("--against", options->against, "A placement whose shape must be the same")
      ->type_name("FILE");
  app.add_flag("--strict", options->strict, "Two replicas of an expert on one GPU break a rule");
  app.footer(
      "Example:\n"
      "  eplbctl lint --placement next.json --against now.json --strict\n"
      "Exit codes: 0 no rule is broken, 1 error, 2 wrong flag or unusable input, 8 some are.");
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunLint(*options); };
  });
}

}  // namespace eplb::cli
