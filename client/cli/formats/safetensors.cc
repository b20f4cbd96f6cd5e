#include "client/cli/formats/safetensors.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/arrays.h"

namespace eplb {
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
  const auto size = std::ssize(data);
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
  std::ranges::sort(order, [](const SafeTensor* a, const SafeTensor* b) {
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
  const uint64_t length = LittleEndian(bytes.substr(0, kLengthBytes));
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
