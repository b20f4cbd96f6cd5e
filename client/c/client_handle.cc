#include "client/c/client_handle.h"

#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "client/options.h"

// NOLINTNEXTLINE(readability-identifier-naming): the struct of the ABI
struct eplb_answers {
  std::vector<std::string> blobs;
};

namespace eplb::c {

absl::Status CheckState(const eplb_client* handle, const char* name, Needs needs) {
  if (handle == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": client is NULL"));
  }
  if (needs == Needs::kNothing) return absl::OkStatus();
  if (handle->client == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, handle->closed ? " was called after close" : " was called before connect"));
  }
  if (needs == Needs::kOpen && handle->closed) {
    return absl::FailedPreconditionError(absl::StrCat(name, " was called after close"));
  }
  return absl::OkStatus();
}

Turn::Turn(eplb_client& handle, const char* name) : handle_(handle) {
  const char* other = nullptr;
  if (handle.under_way.compare_exchange_strong(other, name)) return;
  status_ = absl::FailedPreconditionError(
      absl::StrCat(name, " was called while ", other,
                   " is under way, in another thread or in the one whose callback this is"));
}

Turn::~Turn() {
  if (status_.ok()) handle_.under_way = nullptr;
}

namespace {

// Plain arrays: a thread that ends, or a process that does, has nothing to destroy.
constexpr size_t kMaxMessageBytes = 4096;
thread_local char last_message[kMaxMessageBytes];
thread_local char callback_message[kMaxMessageBytes];

// Keeps the text for a caller that prints it; parts of it may be a peer's.
void Keep(std::string_view text, char* message) noexcept {
  try {
    const std::string kept = Clipped(text, kMaxMessageBytes - 1);
    std::memcpy(message, kept.c_str(), kept.size() + 1);
  } catch (const std::bad_alloc&) {
    std::strcpy(message, "out of memory");
  }
}

constexpr const char* kCodeNames[] = {
    "OK",       "Cancelled",      "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
static_assert(std::size(kCodeNames) == EPLB_UNAUTHENTICATED + 1);

}  // namespace

int32_t Report(const absl::Status& status) noexcept {
  if (status.ok()) return EPLB_OK;
  return Report(static_cast<eplb_code>(status.code()),
                {status.message().data(), status.message().size()});
}

int32_t Report(eplb_code code, std::string_view message) noexcept {
  Keep(message, last_message);
  return code;
}

std::string_view TakeCallbackMessage() noexcept {
  static thread_local char taken[kMaxMessageBytes];
  std::memcpy(taken, callback_message, kMaxMessageBytes);
  callback_message[0] = '\0';
  return taken;
}

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

AllGather MakeAllGather(eplb_all_gather all_gather, void* user, int32_t rank) {
  return
      [all_gather, user, rank](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
        eplb_answers answers;
        const absl::Status status =
            CallBack([&] { return all_gather(user, bytes.data(), bytes.size(), &answers); });
        if (!status.ok()) {
          return absl::Status(status.code(), absl::StrCat("all_gather: ", status.message()));
        }
        const auto own = static_cast<size_t>(rank);
        if (own < answers.blobs.size() && answers.blobs[own] != bytes) {
          return absl::FailedPreconditionError(absl::StrCat(
              "all_gather: the answer of rank ", rank, " is not what this rank ", rank,
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

extern "C" {

int32_t eplb_abi_version() noexcept { return EPLB_ABI_VERSION; }

const char* eplb_version() noexcept { return eplb::kLibraryVersion; }

const char* eplb_code_name(int32_t code) noexcept {
  const bool known = code >= EPLB_OK && code <= EPLB_UNAUTHENTICATED;
  return eplb::c::kCodeNames[known ? code : EPLB_UNKNOWN];
}

const char* eplb_last_message() noexcept { return eplb::c::last_message; }

void eplb_callback_message(const char* text) noexcept {
  eplb::c::Keep(text == nullptr ? "" : text, eplb::c::callback_message);
}

}  // extern "C"

extern "C" int32_t eplb_answers_add(eplb_answers* answers, const void* bytes,
                                    size_t num_bytes) noexcept {
  return eplb::c::CatchAll([&] {
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
