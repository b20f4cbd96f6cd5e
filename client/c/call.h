// Statuses and exceptions become codes and messages of the ABI, and a callback's code a status.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "client/c/eplb.h"

namespace eplb::c {

// Returns the status's code. The message becomes this thread's eplb_last_message().
int32_t Report(const absl::Status& status) noexcept;
int32_t Report(eplb_code code, std::string_view message) noexcept;

// Runs the body of a function of the ABI, () -> absl::Status. No exception passes through C.
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

// Returns the text of eplb_callback_message() since the last time; empty if none.
std::string_view TakeCallbackMessage() noexcept;

// Runs a callback, () -> eplb_code, and returns its answer as a status.
template <class Callback>
absl::Status CallBack(Callback&& callback) {
  (void)TakeCallbackMessage();  // drops that of an earlier callback that returned OK
  int32_t code = EPLB_OK;
  try {
    code = callback();
  } catch (const std::exception& error) {
    return Internal("the callback threw: ", error.what());
  } catch (...) {
    return Internal("the callback threw an exception");
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
