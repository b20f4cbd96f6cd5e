// YAML read as JSON, so that one strict reader checks types, ranges and keys given twice.
// threads: safe, no state.
#include "client/cli/formats/trtllm_format.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/files.h"
#include "base/foreign_text.h"
#include "base/invalid_input.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/layer_assignments.h"

namespace eplb {

inline constexpr size_t kMaxYamlBytes = size_t{1} << 26;

// One YAML document as JSON: plain decimal integers are numbers, every other scalar is a string.
// errors: InvalidArgument saying line and column: not YAML, more than one document, larger than
// above, an anchor or alias (a few lines of them expand to gigabytes), a tag, a key that is no
// scalar. Throws nothing.
absl::StatusOr<std::string> YamlToJson(std::string_view yaml);

namespace {

constexpr char kNumSlots[] = "num_slots";
constexpr char kUpdates[] = "layer_updates_per_iter";
constexpr char kAssignments[] = "initial_global_assignments";
constexpr char kMoe[] = "moe_config";
constexpr char kBalancer[] = "load_balancer";

// The options of the LLM API hold the balancer below moe_config.load_balancer, or name its file.
absl::StatusOr<const wire::JsonValue*> FindBalancer(const wire::JsonValue& object) {
  if (object.Find(kAssignments) != nullptr || object.Find(kMoe) == nullptr) return &object;
  const wire::JsonValue* balancer = object.Find(kMoe)->Find(kBalancer);
  if (balancer == nullptr) {
    return InvalidInput("has neither ", kAssignments, " nor ", kMoe, ".", kBalancer);
  }
  if (balancer->is_object()) return balancer;
  if (balancer->kind == wire::JsonValue::Kind::kString) {
    return InvalidInput(kMoe, ".", kBalancer, " names the file ",
                        wire::JsonQuote(FirstCharacters(balancer->text, 200)),
                        ", expected that file itself");
  }
  return InvalidInput(kMoe, ".", kBalancer, " is ", std::string(wire::KindName(balancer->kind)),
                      ", expected the keys of a balancer");
}

absl::StatusOr<PlacementParts> PartsOf(const wire::JsonValue& object) {
  int64_t updates = 0;
  if (object.Find(kUpdates) != nullptr) {
    EPLB_ASSIGN_OR_RETURN(updates, wire::GetInteger(object, kUpdates));
  }
  if (updates < 0) return InvalidInput(kUpdates, " is ", updates, ", expected >= 0");
  EPLB_ASSIGN_OR_RETURN(LayerAssignments assignments, ReadLayerAssignments(object));
  PlacementParts parts{.slots = std::move(assignments.slots),
                       .layers = std::move(assignments.layers)};
  if (updates != 0) parts.notes.push_back(absl::StrCat(kUpdates, " ", updates, " is dropped"));
  return parts;
}

absl::StatusOr<PlacementParts> ParseTrtllm(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const std::string json, YamlToJson(bytes));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(json));
  if (!object.is_object()) {
    return InvalidInput(
        "is no placement of trtllm, expected YAML with num_slots, layer_updates_per_iter and "
        "initial_global_assignments");
  }
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* balancer, FindBalancer(object));
  return PartsOf(*balancer);
}

}  // namespace

absl::StatusOr<PlacementParts> ParseTrtllmPlacement(const std::string& path,
                                                    std::string_view bytes) {
  absl::StatusOr<PlacementParts> parts = ParseTrtllm(bytes);
  if (!parts.ok()) return InFile(path, parts.status());
  return parts;
}

absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options) {
  if (options.layers.empty()) {
    return InvalidInput(
        "trtllm needs --first-layer or --layers: its rows carry the model's layer numbers, and the "
        "source does not contain that of the first MoE layer (3 for DeepSeek-V3, 0 without dense "
        "layers)");
  }
  const IndexMatrix& slots = placement.physical_to_logical_map();
  std::string yaml =
      absl::StrCat(kNumSlots, ": ", slots.cols(), "\n", kUpdates, ": 0\n", kAssignments, ":\n");
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    const auto row = slots.row(layer);
    absl::StrAppend(&yaml, "  ", options.layers[static_cast<size_t>(layer)], ": [",
                    absl::StrJoin(row.begin(), row.end(), ", "), "]\n");
  }
  return yaml;
}

namespace {

std::string At(const YAML::Mark& mark) {
  return absl::StrCat("line ", mark.line + 1, ", column ", mark.column + 1, ": ");
}

bool IsInteger(const std::string& text) {
  const size_t start = text.starts_with('-') ? 1 : 0;
  if (start == text.size() || (text[start] == '0' && text.size() > start + 1)) return false;
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// Writes each event as JSON. The first thing that JSON has no word for is kept as the error.
class JsonWriter final : public YAML::EventHandler {
 public:
  const std::string& json() const { return json_; }
  const std::string& error() const { return error_; }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Put(mark, "?", anchor, "null", false);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    Fail(mark, "an alias, expected plain values");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool plain = tag == "?" || tag.empty();
    Put(mark, tag, anchor, plain && IsInteger(value) ? value : wire::JsonQuote(value), true);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open(mark, tag, anchor, '[');
  }
  void OnSequenceEnd() override { Close(']'); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open(mark, tag, anchor, '{');
  }
  void OnMapEnd() override { Close('}'); }

 private:
  struct Frame {
    bool is_map = false;
    bool key_is_next = false;
    bool is_empty = true;
  };

  void Fail(const YAML::Mark& mark, const char* what) {
    if (error_.empty()) error_ = absl::StrCat(At(mark), what);
  }

  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) Fail(mark, "an anchor, expected plain values");
    if (!tag.empty() && tag != "?" && tag != "!") Fail(mark, "a tag, expected plain values");
  }

  // What stands in front of the next value or key; whether it is a key.
  bool Begin() {
    if (frames_.empty()) return false;
    Frame& frame = frames_.back();
    const bool is_key = frame.is_map && frame.key_is_next;
    const bool is_value = frame.is_map && !frame.key_is_next;
    if (is_value) {
      json_ += ':';
    } else if (!frame.is_empty) {
      json_ += ',';
    }
    frame.is_empty = false;
    frame.key_is_next = frame.is_map && !is_key;
    return is_key;
  }

  void Put(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
           const std::string& text, bool can_be_key) {
    Check(mark, tag, anchor);
    const bool is_key = Begin();
    if (is_key && !can_be_key) Fail(mark, "a key that is null");
    json_ += is_key && !text.starts_with('"') ? absl::StrCat("\"", text, "\"") : text;
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, char bracket) {
    Check(mark, tag, anchor);
    if (Begin()) Fail(mark, "a key that is no single word");
    json_ += bracket;
    frames_.push_back({.is_map = bracket == '{', .key_is_next = bracket == '{'});
  }

  void Close(char bracket) {
    json_ += bracket;
    frames_.pop_back();
  }

  std::string json_;
  std::vector<Frame> frames_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> YamlToJson(std::string_view yaml) {
  if (yaml.size() > kMaxYamlBytes) {
    return InvalidInput("has ", yaml.size(), " bytes, at most ", kMaxYamlBytes,
                        " of YAML are read");
  }
  JsonWriter writer;
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(writer)) return InvalidInput("empty YAML");
    JsonWriter second;
    if (parser.HandleNextDocument(second)) return InvalidInput("has more than one YAML document");
  } catch (const YAML::Exception& error) {
    // The message may quote bytes of the file.
    return InvalidInput(At(error.mark), "not YAML: ", Printable(error.msg));
  }
  if (!writer.error().empty()) return InvalidInput(writer.error());
  return writer.json();
}

namespace {

constexpr char kMeta[] = "meta_info.json";
constexpr int64_t kMaxMetaBytes = int64_t{1} << 20;
constexpr int64_t kMaxExperts = int64_t{1} << 20;
constexpr int32_t kMaxRanks = 1 << 16;

using Cells = std::map<std::pair<int64_t, int32_t>, std::vector<int64_t>>;  // (iteration, layer)

struct Meta {
  int64_t num_experts = 0;
  std::optional<int64_t> ep_size;
};

absl::StatusOr<Meta> ParseMeta(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(text));
  Meta meta;
  EPLB_ASSIGN_OR_RETURN(meta.num_experts, wire::GetInteger(object, "num_experts"));
  if (meta.num_experts < 1 || meta.num_experts > kMaxExperts) {
    return InvalidInput("num_experts is ", meta.num_experts, ", expected 1..", kMaxExperts);
  }
  if (object.Find("ep_size") != nullptr) {
    EPLB_ASSIGN_OR_RETURN(meta.ep_size, wire::GetInteger(object, "ep_size"));
  }
  return meta;
}

absl::StatusOr<Meta> ReadMeta(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kMeta);
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMaxMetaBytes));
  absl::StatusOr<Meta> meta = ParseMeta(text);
  if (!meta.ok()) return InFile(path, meta.status());
  return meta;
}

// The number of ranks: their files must be numbered from 0 without a gap.
absl::StatusOr<int32_t> CountRanks(const std::string& directory,
                                   const std::optional<int64_t>& ep_size) {
  std::error_code error;
  std::set<int32_t> ranks;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       !error && entry != end && ranks.size() < size_t{kMaxRanks}; entry.increment(error)) {
    const std::string name = entry->path().filename();
    absl::string_view number = name;
    int32_t rank = -1;
    if (absl::ConsumePrefix(&number, "rank") && absl::ConsumeSuffix(&number, ".safetensors") &&
        absl::SimpleAtoi(number, &rank) && rank >= 0) {
      ranks.insert(rank);
    }
  }
  if (error) return InvalidInput(directory, ": ", error.message());
  int32_t count = 0;
  while (ranks.contains(count)) ++count;
  const int64_t expected = ep_size.value_or(ranks.empty() ? 1 : int64_t{*ranks.rbegin()} + 1);
  if (count == expected && ranks.size() == static_cast<size_t>(count)) return count;
  if (count < expected) {
    return InvalidInput(directory, ": rank", count,
                        ".safetensors is missing, expected the files of ", expected, " ranks");
  }
  return InvalidInput(directory, ": has the files of ", ranks.size(), " ranks, ", kMeta,
                      " has ep_size ", expected);
}

// "100_3" -> iteration 100, layer 3.
absl::StatusOr<std::pair<int64_t, int32_t>> ParseKey(const std::string& name) {
  const size_t mark = name.find('_');
  int64_t iteration = -1;
  int32_t layer = -1;
  if (mark == std::string::npos || !absl::SimpleAtoi(name.substr(0, mark), &iteration) ||
      !absl::SimpleAtoi(name.substr(mark + 1), &layer) || iteration < 0 || layer < 0 ||
      absl::StrCat(iteration, "_", layer) != name) {
    return InvalidInput("has the tensor ", wire::JsonQuote(FirstCharacters(name, 80)),
                        ", expected \"iteration_layer\"");
  }
  return std::pair(iteration, layer);
}

// Adds a tensor to the counts of its (iteration, layer).
absl::Status AddTensor(const SafeTensor& tensor, std::vector<int64_t>& counts) {
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    int64_t count = 0;  // the data is not aligned
    std::memcpy(&count, tensor.data.data() + expert * sizeof(count), sizeof(count));
    if (count < 0 || __builtin_add_overflow(counts[expert], count, &counts[expert])) {
      return InvalidInput(tensor.name, " expert ", expert, " is ", count,
                          count < 0 ? ", counts are >= 0" : ", the sum over ranks is above 2^63-1");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const SafeTensor& tensor, int64_t num_experts) {
  const bool shaped = tensor.shape.size() == 1 && tensor.shape[0] == num_experts;
  const auto bytes = num_experts * static_cast<int64_t>(sizeof(int64_t));
  if (tensor.dtype == "I64" && shaped && static_cast<int64_t>(tensor.data.size()) == bytes) {
    return absl::OkStatus();
  }
  return InvalidInput(tensor.name, " is ", wire::JsonQuote(FirstCharacters(tensor.dtype, 16)),
                      " of ", tensor.shape.empty() ? 1 : tensor.shape[0], " numbers in ",
                      tensor.data.size(), " bytes, expected \"I64\" [", num_experts, "] in ",
                      bytes);
}

// REQUIRES: rank 0 comes first, its keys are those of all.
absl::Status AddRank(std::string_view bytes, bool is_first, int64_t num_experts, Cells& cells) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<SafeTensor> tensors, ParseSafetensors(bytes));
  for (const SafeTensor& tensor : tensors) {
    EPLB_ASSIGN_OR_RETURN(const auto key, ParseKey(tensor.name));
    EPLB_RETURN_IF_ERROR(CheckTensor(tensor, num_experts));
    if (is_first) cells[key].assign(static_cast<size_t>(num_experts), 0);
    const auto found = cells.find(key);
    if (found == cells.end()) {
      return InvalidInput("has ", tensor.name, ", which rank0.safetensors has not");
    }
    EPLB_RETURN_IF_ERROR(AddTensor(tensor, found->second));
  }
  if (tensors.size() == cells.size()) return absl::OkStatus();
  return InvalidInput("has ", tensors.size(), " tensors, rank0.safetensors has ", cells.size());
}

// REQUIRES: not empty. Every iteration must have the layers of the first.
absl::StatusOr<LoadFile> CountsOf(const Cells& cells, int64_t num_experts) {
  std::map<int64_t, LayerNumbers> layers;  // of each iteration
  for (const auto& [key, counts] : cells) layers[key.first].push_back(key.second);
  LoadFile file{.windows = {}, .layers = layers.begin()->second};
  auto cell = cells.begin();
  for (const auto& [iteration, numbers] : layers) {
    if (numbers != file.layers) {
      return InvalidInput("iteration ", iteration, " has layers ", LayerNumbersText(numbers),
                          ", iteration ", layers.begin()->first, " has ",
                          LayerNumbersText(file.layers));
    }
    LoadMatrix matrix(static_cast<Eigen::Index>(numbers.size()), num_experts);
    for (Eigen::Index row = 0; row < matrix.rows(); ++row, ++cell) {
      std::memcpy(&matrix(row, 0), cell->second.data(), cell->second.size() * sizeof(int64_t));
    }
    absl::StatusOr<Load> load = Load::FromCounts(std::move(matrix));
    if (!load.ok()) return InvalidInput("iteration ", iteration, ": ", load.status().message());
    file.windows.push_back({iteration, iteration, *std::move(load)});
  }
  return file;
}

}  // namespace

bool IsTrtllmStatistics(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) &&
         std::filesystem::exists(absl::StrCat(path, "/", kMeta), error);
}

absl::StatusOr<LoadFile> ReadTrtllmStatistics(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return InvalidInput(path, ": is no directory of statistics with ", kMeta);
  }
  EPLB_ASSIGN_OR_RETURN(const Meta meta, ReadMeta(path));
  EPLB_ASSIGN_OR_RETURN(const int32_t num_ranks, CountRanks(path, meta.ep_size));
  Cells cells;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const std::string file = absl::StrCat(path, "/rank", rank, ".safetensors");
    EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(file));
    const absl::Status added = AddRank(bytes, rank == 0, meta.num_experts, cells);
    if (!added.ok()) return InFile(file, added);
  }
  if (cells.empty()) return InvalidInput(path, ": holds no counts");
  absl::StatusOr<LoadFile> counts = CountsOf(cells, meta.num_experts);
  if (!counts.ok()) return InFile(path, counts.status());
  return counts;
}

namespace {

using wire::JsonNumbers;
using wire::JsonValue;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 27;
constexpr size_t kMaxTensors = size_t{1} << 18;
constexpr size_t kMaxDimensions = 8;
constexpr std::string_view kMetadata = "__metadata__";

absl::StatusOr<std::vector<int64_t>> Integers(const JsonValue& tensor, std::string_view key) {
  const JsonValue* value = tensor.Find(key);
  // A scalar's shape is an empty array, which has no numbers to be integers.
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, wire::GetNumbers(tensor, key, 1));
  if (!numbers->all_integers() || value->numbers.num_numbers() > kMaxDimensions) {
    return InvalidInput(std::string(key), " is no list of up to ", kMaxDimensions, " integers");
  }
  return numbers->integers;
}

absl::StatusOr<SafeTensor> ReadTensor(const JsonValue& entry, std::string_view data) {
  SafeTensor tensor;
  EPLB_ASSIGN_OR_RETURN(tensor.dtype, wire::GetString(entry, "dtype"));
  EPLB_ASSIGN_OR_RETURN(tensor.shape, Integers(entry, "shape"));
  EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, Integers(entry, "data_offsets"));
  const auto size = static_cast<int64_t>(data.size());
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] || offsets[1] > size) {
    return InvalidInput("data_offsets are not two rising numbers in 0..", size);
  }
  tensor.data =
      data.substr(static_cast<size_t>(offsets[0]), static_cast<size_t>(offsets[1] - offsets[0]));
  return tensor;
}

// errors unless the tensors fill the data one after another, in whatever order they are named.
absl::Status CheckNoGaps(const std::vector<SafeTensor>& tensors, std::string_view data) {
  std::vector<const SafeTensor*> order;
  order.reserve(tensors.size());
  for (const SafeTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const SafeTensor* a, const SafeTensor* b) {
    return std::pair(a->data.data(), a->data.size()) < std::pair(b->data.data(), b->data.size());
  });
  const char* next = data.data();
  for (const SafeTensor* tensor : order) {
    if (tensor->data.data() != next) {
      return InvalidInput("tensor ", wire::JsonQuote(FirstCharacters(tensor->name, 80)),
                          " begins at byte ", tensor->data.data() - data.data(),
                          ", the one before ends at byte ", next - data.data());
    }
    next += tensor->data.size();
  }
  if (next == data.data() + data.size()) return absl::OkStatus();
  return InvalidInput("has ", data.size(), " bytes of numbers, the header claims ",
                      next - data.data());
}

}  // namespace

absl::StatusOr<std::vector<SafeTensor>> ParseSafetensors(std::string_view bytes) {
  if (bytes.size() < kLengthBytes) return InvalidInput("truncated in the header's length");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  bytes.remove_prefix(kLengthBytes);
  if (length > kMaxHeaderBytes || length > bytes.size()) {
    return InvalidInput("truncated in the header: it claims ", length, " bytes, ", bytes.size(),
                        " follow");
  }
  const std::string_view data = bytes.substr(length);
  absl::StatusOr<JsonValue> header = wire::ParseJson(bytes.substr(0, length), kMaxTensors);
  if (!header.ok()) return InvalidInput("header: ", header.status().message());
  if (!header->is_object()) return InvalidInput("header is no JSON object");
  std::vector<SafeTensor> tensors;
  for (const wire::JsonMember& member : header->members) {
    if (member.key == kMetadata) continue;
    absl::StatusOr<SafeTensor> tensor = ReadTensor(member.value, data);
    if (!tensor.ok()) {
      return InvalidInput("tensor ", wire::JsonQuote(FirstCharacters(member.key, 80)), ": ",
                          tensor.status().message());
    }
    tensor->name = member.key;
    tensors.push_back(*std::move(tensor));
  }
  EPLB_RETURN_IF_ERROR(CheckNoGaps(tensors, data));
  return tensors;
}

}  // namespace eplb
