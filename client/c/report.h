// From statuses and exceptions to codes and messages, and from a callback's code to a status.
#ifndef EPLB_CLIENT_C_REPORT_H_
#define EPLB_CLIENT_C_REPORT_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "client/c/eplb.h"

namespace eplb::c {

// The status's code; its message becomes this thread's eplb_last_message().
int32_t Report(const absl::Status& status) noexcept;
int32_t Report(eplb_code code, std::string_view message) noexcept;

// Runs what a function of the ABI does, () -> absl::Status. Nothing is thrown through C.
template <class Body>
int32_t Guarded(Body&& body) noexcept {
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

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_REPORT_H_
