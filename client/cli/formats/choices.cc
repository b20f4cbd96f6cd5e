// Counts tokens of experts from a router's single choices.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/layer_numbers.h"

namespace eplb {
namespace {

constexpr char kTracePrefix[] = "router_trace_rank";
constexpr char kTraceSuffix[] = ".jsonl";
constexpr char kIndices[] = "top_indices";
constexpr char kDecoder[] = "decoder";
constexpr int64_t kMaxCounts = int64_t{1} << 26;

using TracedLayer = std::tuple<std::string, int64_t, int64_t>;  // block, head, number in it

// Tokens of a layer in a step.
struct Cell {
  std::vector<int64_t> counts = {};  // by expert
  int64_t files = 0;                 // number of files with the cell
  int64_t newest = 0;                // number of the last of them, counted from 1
};
using Trace = std::map<std::pair<int64_t, TracedLayer>, Cell>;  // by step and layer

// counts: [num_experts], of the layer.
absl::Status CountChoice(int64_t expert, int64_t layer, int64_t num_experts, int64_t* counts) {
  if (expert >= num_experts) {
    return InvalidInput("has expert ", expert, " in layer ", layer, ", --experts is ", num_experts);
  }
  if (expert >= 0) ++counts[expert];
  return absl::OkStatus();
}

absl::Status CheckSize(int64_t rows, int64_t num_experts) {
  if (rows <= kMaxCounts / num_experts) return absl::OkStatus();
  return InvalidInput("has ", rows, " rows of ", num_experts, " experts, at most ", kMaxCounts,
                      " counts are read");
}

// A number >= 0, which is 0 in a record without the key if it is optional.
absl::StatusOr<int64_t> GetPlace(const wire::JsonValue& record, const char* key, bool is_optional) {
  if (is_optional && record.Find(key) == nullptr) return 0;
  EPLB_ASSIGN_OR_RETURN(const int64_t number, wire::GetInteger(record, key));
  if (number < 0) return InvalidInput(key, " is ", number, ", expected >= 0");
  return number;
}

// file: number of the record's file, counted from 1.
absl::Status AddRecord(const wire::JsonValue& record, int64_t file, int64_t num_experts,
                       Trace& trace) {
  EPLB_ASSIGN_OR_RETURN(const int64_t step, GetPlace(record, "step", false));
  EPLB_ASSIGN_OR_RETURN(const int64_t layer, GetPlace(record, "layer", false));
  EPLB_ASSIGN_OR_RETURN(const int64_t head, GetPlace(record, "mtp_idx", true));
  std::string block = kDecoder;
  if (record.Find("block") != nullptr) {
    EPLB_ASSIGN_OR_RETURN(block, wire::GetString(record, "block"));
  }
  Cell& cell = trace[{step, TracedLayer(block, head, layer)}];
  EPLB_RETURN_IF_ERROR(CheckSize(std::ssize(trace), num_experts));
  cell.counts.resize(static_cast<size_t>(num_experts));
  if (cell.newest != file) ++cell.files;
  cell.newest = file;
  const wire::JsonValue* const indices = record.Find(kIndices);
  // A batch without tokens is an array of one level.
  if (indices != nullptr && indices->is_array() && indices->numbers.children[0][0] == 0) {
    return absl::OkStatus();
  }
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::GetNumbers(record, kIndices, 2));
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*numbers, kIndices, "an expert"));
  const std::vector<int64_t>& tokens = numbers->children[1];
  if (std::ranges::adjacent_find(tokens, std::not_equal_to()) != tokens.end()) {
    return InvalidInput(kIndices, " has tokens of different numbers of choices");
  }
  for (const int64_t expert : numbers->integers) {
    EPLB_RETURN_IF_ERROR(CountChoice(expert, layer, num_experts, cell.counts.data()));
  }
  return absl::OkStatus();
}

absl::Status AddFile(const std::string& path, int64_t file, int64_t num_experts, Trace& trace) {
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path));
  for (const TextLine& line : SplitLines(bytes)) {
    const absl::StatusOr<wire::JsonValue> record = wire::ParseJson(line.text);
    EPLB_RETURN_IF_ERROR(
        InLine(path, line.number,
               record.ok() ? AddRecord(*record, file, num_experts, trace) : record.status()));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadFile> LoadOfTrace(const Trace& trace, int64_t num_experts) {
  std::map<TracedLayer, Eigen::Index> rows;
  for (const auto& [place, cell] : trace) rows[place.second] = 0;
  LoadFile file{.windows = {}, .has_steps = true};
  bool is_decoder = true;
  for (auto& [layer, row] : rows) {
    const auto& [block, head, number] = layer;
    is_decoder = is_decoder && block == kDecoder && head == 0 && number <= kMaxLayerNumber;
    row = std::ssize(file.layers);
    file.layers.push_back(static_cast<int32_t>(number));
  }
  if (!is_decoder) file.layers.clear();
  std::map<int64_t, LoadMatrix> steps;
  for (const auto& [place, cell] : trace) {
    LoadMatrix& matrix = steps[place.first];
    EPLB_RETURN_IF_ERROR(CheckSize(std::ssize(steps) * std::ssize(rows), num_experts));
    if (matrix.size() == 0) matrix = LoadMatrix::Zero(std::ssize(rows), num_experts);
    std::ranges::copy(cell.counts, &matrix(rows.at(place.second), 0));
  }
  for (auto& [step, matrix] : steps) {
    EPLB_ASSIGN_OR_RETURN(Load load, Load::FromCounts(std::move(matrix)));
    file.windows.push_back({step, step, std::move(load)});
  }
  return file;
}

// The ranks whose traces are in a directory; none if it cannot be read.
std::set<int32_t> RanksIn(const std::string& directory) {
  return RanksOfFiles(directory, kTracePrefix, kTraceSuffix).value_or(std::set<int32_t>());
}

}  // namespace

absl::StatusOr<LoadWindow> CountChoices(const Array& array, int32_t num_experts) {
  if (array.shape.size() != 3 || array.type->integer == nullptr) {
    return InvalidInput("has ", array.shape.size(), " dimensions of ",
                        array.type->integer == nullptr ? "floats" : "integers",
                        ", expected choices, integers [tokens, layers, top-k]");
  }
  EPLB_RETURN_IF_ERROR(CheckSize(array.shape[1], num_experts));
  LoadMatrix load = LoadMatrix::Zero(array.shape[1], num_experts);
  for (int64_t token = 0; token < array.shape[0]; ++token) {
    for (int64_t layer = 0; layer < array.shape[1]; ++layer) {
      for (int64_t choice = 0; choice < array.shape[2]; ++choice) {
        const int64_t expert = array.type->integer(array.At(token, layer, choice));
        EPLB_RETURN_IF_ERROR(CountChoice(expert, layer, num_experts, &load(layer, 0)));
      }
    }
  }
  EPLB_ASSIGN_OR_RETURN(Load counted, Load::FromCounts(std::move(load)));
  return LoadWindow{.load = std::move(counted)};
}

bool HoldsRouterTraces(const std::string& path) { return !RanksIn(path).empty(); }

bool IsRouterTrace(std::string_view bytes) {
  return bytes.substr(0, bytes.find('\n')).find("\"top_indices\"") != std::string_view::npos;
}

absl::StatusOr<LoadFile> ReadRouterTraces(const std::string& path,
                                          std::optional<int32_t> num_experts) {
  if (!num_experts.has_value()) {
    return InvalidInput(path,
                        ": is a router trace, which has no number of experts: give --experts");
  }
  const std::set<int32_t> ranks = RanksIn(path);
  std::vector<std::string> files;
  files.reserve(ranks.size());
  for (const int32_t rank : ranks) {
    files.push_back(absl::StrCat(path, "/", kTracePrefix, rank, kTraceSuffix));
  }
  if (files.empty()) files = {path};
  Trace trace;
  int64_t number = 0;
  for (const std::string& file : files) {
    EPLB_RETURN_IF_ERROR(AddFile(file, ++number, *num_experts, trace));
  }
  if (trace.empty()) return InvalidInput(path, ": has no line: no layer was traced");
  EPLB_ASSIGN_OR_RETURN(LoadFile load, InFile(path, LoadOfTrace(trace, *num_experts)));
  const auto lacking = std::ranges::count_if(
      trace, [number](const auto& cell) { return cell.second.files < number; });
  if (lacking > 0) {
    load.notes.push_back(absl::StrCat(lacking, " of ", trace.size(),
                                      " pairs of a step and a layer ",
                                      "are not in the files of all ranks"));
  }
  if (!ranks.empty() && std::ssize(ranks) <= *ranks.rbegin()) {
    load.notes.push_back(absl::StrCat("the traces of ", ranks.size(),
                                      " ranks are read, of ranks 0..", *ranks.rbegin(),
                                      " some have none"));
  }
  return load;
}

}  // namespace eplb
