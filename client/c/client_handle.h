// What is behind an eplb_client.
#ifndef EPLB_CLIENT_C_CLIENT_HANDLE_H_
#define EPLB_CLIENT_C_CLIENT_HANDLE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "client/client.h"
#include "client/fork_guard.h"
#include "client/tokens.h"

// The struct of the ABI is in no namespace. Threads: the training thread, except where a member is
// atomic.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_client {
  eplb_client() = default;
  eplb_client(const eplb_client&) = delete;
  eplb_client& operator=(const eplb_client&) = delete;
  ~eplb_client() { delete client.load(); }

  // As C wants it. Valid until the next call.
  const char* NameOfTransport() const {
    transport = client.load()->transport();
    return transport.c_str();
  }

  const eplb::ForkGuard fork_guard;
  std::atomic<eplb::Client*> client = nullptr;   // set once, by connect
  std::atomic<const char*> under_way = nullptr;  // the call that is
  std::atomic<bool> closed = false;
  std::string message;            // of the last call that failed
  eplb::BoundaryResult boundary;  // the newest; owns the strings that callers see
  mutable std::string transport;  // likewise
};

namespace eplb::c {

// Value of a figure without a sample.
inline constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

// From statuses and exceptions to codes and messages, and from a callback's code to a status.

// The status's code; its message becomes this thread's eplb_last_message().
int32_t Report(const absl::Status& status) noexcept;
int32_t Report(eplb_code code, std::string_view message) noexcept;

// Runs what a function of the ABI does, () -> absl::Status. Nothing is thrown through C.
template <class Body>
int32_t CatchAll(Body&& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(EPLB_RESOURCE_EXHAUSTED, "no memory");
  } catch (const std::exception& error) {
    return Report(EPLB_INTERNAL, error.what());
  } catch (...) {
    return Report(EPLB_INTERNAL, "an exception of an unknown type");
  }
}

// What eplb_callback_message() was told since the last time; empty if nothing.
std::string_view TakeCallbackMessage() noexcept;

// Runs a callback, () -> eplb_code, and says what it answered.
template <class Callback>
absl::Status CallBack(Callback&& callback) {
  (void)TakeCallbackMessage();  // of a callback that was OK after all
  int32_t code = EPLB_OK;
  try {
    code = callback();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the callback threw: ", error.what()));
  } catch (...) {
    return absl::InternalError("the callback threw an exception");
  }
  if (code == EPLB_OK) return absl::OkStatus();
  const std::string_view told = TakeCallbackMessage();
  const bool known = code > EPLB_OK && code <= EPLB_UNAUTHENTICATED;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      told.empty() ? absl::StrCat("the callback returned ", code, " (", eplb_code_name(code), ")")
                   : std::string(told));
}

enum class Needs {
  kNothing,
  kConnected,  // also after close
  kOpen,
};

// Whether this call on the client, named `name`, can be; errors: InvalidArgument for NULL,
// FailedPrecondition for a state that is not what it needs.
absl::Status CheckState(const eplb_client* handle, const char* name, Needs needs);

// Makes `name` the call under way, for as long as it lives.
class Turn {
 public:
  Turn(eplb_client& handle, const char* name);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // FailedPrecondition, naming both calls, when another one is under way.
  const absl::Status& status() const { return status_; }

 private:
  eplb_client& handle_;
  absl::Status status_;
};

// A call of the training thread that does something: `body` is () -> absl::Status. In a forked
// child it is OK and nothing.
template <class Body>
int32_t CallOnTrainingThread(eplb_client* handle, const char* name, Needs needs,
                             Body&& body) noexcept {
  bool ours = false;  // else the message is that of the call under way
  const int32_t code = CatchAll([&]() -> absl::Status {
    if (handle == nullptr) return CheckState(handle, name, needs);
    if (handle->fork_guard.InForkedChild()) return absl::OkStatus();
    const Turn turn(*handle, name);
    if (!turn.status().ok()) return turn.status();
    ours = true;
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    return body();
  });
  if (ours && code != EPLB_OK) {
    // Without memory even for the message, eplb_last_message() has it.
    (void)CatchAll([&] {
      handle->message = eplb_last_message();
      return absl::OkStatus();
    });
  }
  return code;
}

// A call that only reads, and may be made inside callbacks.
template <class Body>
int32_t ReadOnlyCall(const eplb_client* handle, const char* name, Needs needs,
                     Body&& body) noexcept {
  return CatchAll([&]() -> absl::Status {
    if (absl::Status status = CheckState(handle, name, needs); !status.ok()) return status;
    return body();
  });
}

// Structs that carry their size: a caller compiled against another version of eplb.h has a shorter
// or a longer one.

// No caller has a shorter struct. One that grows keeps the size that it had in the first release,
// by a specialization.
template <class Struct>
inline constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<eplb_client_options> = offsetof(eplb_client_options, ahead);

// No struct will ever be longer: a struct_size that was never set is found before its bytes are
// looked at.
inline constexpr size_t kMaxStructSize = 4096;

// errors: InvalidArgument, naming the argument, for a struct_size that no version of eplb.h has.
template <class Struct>
absl::Status CheckStructSize(const char* name, size_t struct_size) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  static_assert(kFirstSize<Struct> >= sizeof(size_t) && kFirstSize<Struct> <= sizeof(Struct));
  if (struct_size >= kFirstSize<Struct> && struct_size <= kMaxStructSize) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", struct_size,
                                                 ", expected sizeof, which is ", sizeof(Struct),
                                                 " in this library"));
}

// The caller's struct, with `defaults` for what it is too short for.
// errors: InvalidArgument, naming the argument: NULL, no right struct_size, or a field that this
// library does not know is not 0.
template <class Struct>
absl::StatusOr<Struct> ReadStruct(const char* name, const Struct* given, Struct defaults = {}) {
  if (given == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  EPLB_RETURN_IF_ERROR(CheckStructSize<Struct>(name, given->struct_size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  const size_t size = given->struct_size;
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char b) { return b != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " sets a field that this library, ", eplb_version(),
                     ", does not know: it is older than the eplb.h that the program is made with"));
  }
  std::memcpy(&defaults, given, std::min(size, sizeof(Struct)));
  return defaults;
}

// errors: InvalidArgument, naming the argument: NULL or no right struct_size.
template <class Struct>
absl::Status CheckFillable(const char* name, const Struct* result) {
  if (result == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  return CheckStructSize<Struct>(name, result->struct_size);
}

// Writes as much of `value` as the caller's struct takes, and zeros behind it.
// REQUIRES: CheckFillable(result).
template <class Struct>
void FillStruct(Struct value, Struct* result) {
  const size_t size = result->struct_size;
  value.struct_size = size;
  std::memcpy(result, &value, std::min(size, sizeof(Struct)));
  auto* bytes = reinterpret_cast<unsigned char*>(result);
  if (size > sizeof(Struct)) std::fill(bytes + sizeof(Struct), bytes + size, 0);
}

// Callbacks of C made those of C++.

// rank: of the caller, whose own answer is looked for at its place.
AllGather MakeAllGather(eplb_all_gather all_gather, void* user, int32_t rank);

ExpertProbe MakeProbe(eplb_probe probe, void* user);

// errors: InvalidArgument naming the tensor, for what is no such struct, no such role, or a name
// that is NULL.
absl::StatusOr<std::vector<ExpertTensorView>> ReadTensors(const eplb_tensor* tensors,
                                                          size_t num_tensors);

// errors: InvalidArgument naming the field. Pointers are the next checks' matter.
absl::StatusOr<cuda::CountArgs> ReadChoices(const eplb_choices* given);

// What eplb_client_options_init() gives.
eplb_client_options DefaultClientOptions();

// errors: InvalidArgument for what is no such struct, naming the field; Client::Connect checks the
// rest.
absl::StatusOr<ClientOptions> ReadClientOptions(const eplb_client_options* given);

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_CLIENT_HANDLE_H_
