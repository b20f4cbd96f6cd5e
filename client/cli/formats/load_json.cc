#include "client/cli/formats/load_json.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"

namespace eplb {
namespace {

using wire::JsonNumbers;
using wire::JsonValue;

constexpr char kLoadFormat[] = "eplb.load.v1";
constexpr char kPlacementFormat[] = "eplb.placement.v1";

absl::Status UnknownSchema(const JsonValue& value) {
  std::string what = absl::StrCat("is ", std::string(wire::KindName(value.kind)));
  if (value.is_object()) {
    what = "is an object without \"format\" or \"first_step\"";
    const JsonValue* format = value.Find("format");
    const bool named = format != nullptr && format->kind == JsonValue::Kind::kString;
    if (named) what = absl::StrCat("has the format ", wire::JsonQuote(format->text));
    if ((named && format->text == kPlacementFormat) ||
        value.Find("physical_to_logical_map") != nullptr) {
      return InvalidInput(
          "is a placement, expected a load: tokens of each expert [layers][experts]");
    }
  }
  return InvalidInput(what, "; ", KnownLoadFormats());
}

template <class Matrix, class Number>
Matrix MatrixOf(const Number* numbers, int64_t rows, int64_t cols) {
  return Eigen::Map<const Matrix>(numbers, rows, cols);
}

absl::Status CheckRows(const JsonNumbers& numbers) {
  const std::vector<int64_t>& rows = numbers.children.back();
  for (size_t row = 1; row < rows.size(); ++row) {
    if (rows[row] == rows[0]) continue;
    const auto layers = static_cast<size_t>(numbers.children[numbers.children.size() - 2].front());
    const bool steps = numbers.children.size() == 3;
    return InvalidInput(steps ? absl::StrCat("step ", row / layers, " ") : "", "layer ",
                        steps ? row % layers : row, " has ", rows[row], " experts, layer 0 has ",
                        rows[0]);
  }
  return absl::OkStatus();
}

// The matrix that begins at the number `first`.
absl::StatusOr<Load> LoadAt(const JsonNumbers& numbers, int64_t first, int64_t rows, int64_t cols) {
  const int64_t too_large = numbers.too_large_index - first;
  if (numbers.too_large_index >= 0 && too_large >= 0 && too_large < rows * cols) {
    return InvalidInput("layer ", too_large / cols, " expert ", too_large % cols, " is ",
                        numbers.too_large, ", counts are at most 2^63-1");
  }
  if (numbers.all_integers()) {
    return Load::FromCounts(MatrixOf<LoadMatrix>(numbers.integers.data() + first, rows, cols));
  }
  return Load::FromEstimates(MatrixOf<RealMatrix>(numbers.reals.data() + first, rows, cols));
}

bool IsWindow(const JsonValue& value) {
  return value.Find("format") == nullptr &&
         (value.Find("first_step") != nullptr || value.Find("last_step") != nullptr);
}

absl::StatusOr<LoadWindow> WindowFrom(const JsonValue& value) {
  if (!IsWindow(value)) return UnknownSchema(value);
  EPLB_ASSIGN_OR_RETURN(const int64_t first_step, wire::GetInteger(value, "first_step"));
  EPLB_ASSIGN_OR_RETURN(const int64_t last_step, wire::GetInteger(value, "last_step"));
  if (first_step < 0 || last_step < first_step) {
    return InvalidInput("first_step is ", first_step, ", last_step is ", last_step,
                        ", expected 0 <= first_step <= last_step");
  }
  EPLB_ASSIGN_OR_RETURN(const JsonValue* cells, wire::GetMember(value, "load"));
  EPLB_ASSIGN_OR_RETURN(Load load, LoadFromJson(*cells, "load"));
  return LoadWindow{first_step, last_step, std::move(load)};
}

// A file that is one JSON value.
absl::StatusOr<LoadWindow> WindowFromDocument(const JsonValue& value) {
  const JsonValue* format = value.Find("format");
  if (format == nullptr || format->text != kLoadFormat) return WindowFrom(value);
  EPLB_ASSIGN_OR_RETURN(const JsonValue* cells, wire::GetMember(value, "load"));
  EPLB_ASSIGN_OR_RETURN(Load load, LoadFromJson(*cells, "load"));
  return LoadWindow{.load = std::move(load)};
}

absl::StatusOr<std::vector<LoadWindow>> WindowsFromLines(const std::string& path,
                                                         const std::vector<TextLine>& lines) {
  std::vector<LoadWindow> windows;
  windows.reserve(lines.size());
  for (const TextLine& line : lines) {
    const absl::StatusOr<JsonValue> value = wire::ParseJson(line.text);
    absl::StatusOr<LoadWindow> window = value.ok() ? WindowFrom(*value) : value.status();
    absl::Status status = window.status();
    if (status.ok() && !windows.empty()) status = CheckFollows(windows.back(), *window);
    if (!status.ok()) return InLine(path, line.number, status);
    window->line = line.number;
    windows.push_back(*std::move(window));
  }
  return windows;
}

enum class Peers { kRefused, kRead };

// A file that is one JSON value. errors: without path.
absl::StatusOr<LoadFile> FileFromDocument(const JsonValue& value, Peers peers) {
  if (peers == Peers::kRead && IsAscendLoad(value)) return AscendLoad(value);
  if (peers == Peers::kRead && IsSglangLoad(value)) return SglangLoad(value);
  if (value.is_array()) return LoadFileOf(StepsFromJson(value, ""), TableKind::kArray);
  EPLB_ASSIGN_OR_RETURN(LoadWindow window, WindowFromDocument(value));
  LoadFile file{.windows = {}, .has_steps = IsWindow(value)};
  file.windows.push_back(std::move(window));
  return file;
}

absl::StatusOr<LoadFile> ParseJson(const std::string& path, std::string_view text, Peers peers) {
  const std::vector<TextLine> lines = SplitLines(text);
  // Several lines are a trace when the first is a whole object, else one value in a wide layout.
  if (lines.size() > 1) {
    const absl::StatusOr<JsonValue> first = wire::ParseJson(lines.front().text);
    if (first.ok() && peers == Peers::kRead && IsVllmRecord(*first)) {
      return ParseVllmLoad(path, text);
    }
    if (first.ok() && first->is_object()) {
      EPLB_ASSIGN_OR_RETURN(LoadFile file, LoadFileOf(WindowsFromLines(path, lines)));
      file.has_steps = true;
      return file;
    }
  }
  EPLB_ASSIGN_OR_RETURN(const JsonValue value, InFile(path, wire::ParseJson(text)));
  if (peers == Peers::kRead && IsVllmRecord(value)) return ParseVllmLoad(path, text);
  return InFile(path, FileFromDocument(value, peers));
}

}  // namespace

absl::StatusOr<Load> LoadFromJson(const JsonValue& value, std::string_view name) {
  if (value.is_array() && value.numbers.children.size() == 1 && value.numbers.problem.empty() &&
      value.numbers.num_numbers() == 0) {
    return InvalidInput("the load has no layers");
  }
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, wire::AsNumbers(value, name, 2));
  EPLB_RETURN_IF_ERROR(CheckRows(*numbers));
  const std::vector<int64_t>& rows = numbers->children[1];
  return LoadAt(*numbers, 0, std::ssize(rows), rows.front());
}

absl::StatusOr<std::vector<LoadWindow>> StepsFromJson(const JsonValue& value,
                                                      std::string_view name) {
  std::vector<LoadWindow> windows;
  if (!value.is_array() || value.numbers.children.size() != 3) {
    EPLB_ASSIGN_OR_RETURN(Load load, LoadFromJson(value, name));
    windows.push_back({.load = std::move(load)});
    return windows;
  }
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, wire::AsNumbers(value, name, 3));
  const std::vector<int64_t>& layers = numbers->children[1];
  for (size_t step = 1; step < layers.size(); ++step) {
    if (layers[step] == layers[0]) continue;
    return InvalidInput("step ", step, " has ", layers[step], " layers, step 0 has ", layers[0]);
  }
  EPLB_RETURN_IF_ERROR(CheckRows(*numbers));
  const int64_t experts = numbers->children[2].front();
  for (int64_t step = 0; step < std::ssize(layers); ++step) {
    EPLB_ASSIGN_OR_RETURN(Load load,
                          InFile(absl::StrCat("step ", step),
                                 LoadAt(*numbers, step * layers[0] * experts, layers[0], experts)));
    windows.push_back({step, step, std::move(load)});
  }
  return windows;
}

std::string KnownLoadFormats() {
  return absl::StrCat(
      "tried a JSON matrix [layers][experts] or [steps][layers][experts], \"", kLoadFormat,
      "\", JSON lines of windows, NumPy .npy and .npz, .pt of torch.save, CSV, sglang's "
      "logical_count, vllm's eplb_load_stats, ascend's aggregated_load, megatron's router traces "
      "and trtllm's directory of statistics");
}

absl::StatusOr<LoadFile> ParseLoadJson(const std::string& path, std::string_view text) {
  return ParseJson(path, text, Peers::kRefused);
}

absl::StatusOr<LoadFile> ParseAnyLoadJson(const std::string& path, std::string_view text) {
  return ParseJson(path, text, Peers::kRead);
}

}  // namespace eplb
