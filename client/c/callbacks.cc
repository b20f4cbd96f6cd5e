#include "client/c/callbacks.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/c/report.h"
#include "client/c/structs.h"

// NOLINTNEXTLINE(readability-identifier-naming): the struct of the ABI
struct eplb_answers {
  std::vector<std::string> blobs;
};

namespace eplb::c {
namespace {

constexpr size_t kMaxAnswers = size_t{1} << 20;  // ranks

absl::StatusOr<Role> ReadRole(int32_t role) {
  switch (role) {
    case EPLB_WEIGHT:
      return Role::kWeight;
    case EPLB_STATE:
      return Role::kState;
    case EPLB_DERIVED:
      return Role::kDerived;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "role ", role, ", expected EPLB_WEIGHT (0), EPLB_STATE (1) or ", "EPLB_DERIVED (2)"));
  }
}

absl::StatusOr<ExpertTensorView> ReadTensor(const eplb_tensor& tensor) {
  ExpertTensorView view;
  if (tensor.name == nullptr) return absl::InvalidArgumentError("name is NULL");
  view.name = tensor.name;
  EPLB_ASSIGN_OR_RETURN(view.role, ReadRole(tensor.role));
  if (tensor.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat("reserved ", tensor.reserved, ", expected 0"));
  }
  view.layer = tensor.layer;
  view.base = tensor.base;
  view.num_rows = tensor.num_rows;
  view.row_bytes = tensor.row_bytes;
  view.row_stride = tensor.row_stride;
  if (tensor.rebuild != nullptr) {
    view.rebuild = [rebuild = tensor.rebuild, user = tensor.user](
                       int32_t layer, std::span<const int32_t> local_slots) {
      return CallBack([&] { return rebuild(user, layer, local_slots.data(), local_slots.size()); });
    };
  }
  return view;
}

}  // namespace

Exchange MakeExchange(eplb_exchange exchange, void* user, int32_t rank) {
  return
      [exchange, user, rank](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
        eplb_answers answers;
        const absl::Status status =
            CallBack([&] { return exchange(user, bytes.data(), bytes.size(), &answers); });
        if (!status.ok()) {
          return absl::Status(status.code(), absl::StrCat("exchange: ", status.message()));
        }
        const auto own = static_cast<size_t>(rank);
        if (own < answers.blobs.size() && answers.blobs[own] != bytes) {
          return absl::FailedPreconditionError(absl::StrCat(
              "exchange: the answer of rank ", rank, " is not what this rank ", rank,
              " gave: another process speaks for it, or the answers are not in the order "
              "of ranks"));
        }
        return std::move(answers.blobs);
      };
}

ExpertProbe MakeProbe(eplb_probe probe, void* user) {
  return [probe, user](int32_t layer, int32_t local_slot) -> absl::StatusOr<uint64_t> {
    uint64_t digest = 0;
    EPLB_RETURN_IF_ERROR(CallBack([&] { return probe(user, layer, local_slot, &digest); }));
    return digest;
  };
}

absl::StatusOr<std::vector<ExpertTensorView>> ReadTensors(const eplb_tensor* tensors,
                                                          size_t num_tensors) {
  std::vector<ExpertTensorView> views;
  if (num_tensors == 0) return views;
  if (tensors == nullptr) return absl::InvalidArgumentError("tensors is NULL");
  const size_t size = tensors->struct_size;
  for (size_t i = 0; i < num_tensors; ++i) {
    const std::string name = absl::StrCat("tensors[", i, "]");
    // The caller's array has the caller's distance between structs.
    const auto* tensor = reinterpret_cast<const eplb_tensor*>(
        reinterpret_cast<const unsigned char*>(tensors) + i * size);
    EPLB_ASSIGN_OR_RETURN(const eplb_tensor known, ReadStruct(name.c_str(), tensor));
    if (known.struct_size != size) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", known.struct_size,
                                                     ", that of tensors[0] is ", size));
    }
    absl::StatusOr<ExpertTensorView> view = ReadTensor(known);
    if (!view.ok()) {
      return absl::Status(
          view.status().code(),
          absl::StrCat(name, known.name == nullptr ? "" : " \"",
                       known.name == nullptr ? "" : known.name, known.name == nullptr ? "" : "\"",
                       ": ", view.status().message()));
    }
    views.push_back(*std::move(view));
  }
  return views;
}

}  // namespace eplb::c

extern "C" int32_t eplb_answers_add(eplb_answers* answers, const void* bytes,
                                    size_t num_bytes) noexcept {
  return eplb::c::Guarded([&] {
    if (answers == nullptr || (bytes == nullptr && num_bytes != 0)) {
      return absl::InvalidArgumentError("eplb_answers_add: an argument is NULL");
    }
    if (answers->blobs.size() >= eplb::c::kMaxAnswers) {
      return absl::InvalidArgumentError(
          absl::StrCat("eplb_answers_add: more than ", eplb::c::kMaxAnswers, " answers"));
    }
    answers->blobs.emplace_back(static_cast<const char*>(bytes), num_bytes);
    return absl::OkStatus();
  });
}
