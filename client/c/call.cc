// Messages of failed calls, one per thread, and the names of codes.
#include "client/c/call.h"

#include <cstring>
#include <iterator>

#include "base/foreign_text.h"
#include "client/options.h"

namespace eplb::c {
namespace {

// Plain arrays, so that the end of a thread or of the process destroys nothing.
constexpr size_t kMaxMessageBytes = 4096;
thread_local char last_message[kMaxMessageBytes];
thread_local char callback_message[kMaxMessageBytes];

// Keeps a text, which may quote a peer, in a form that a caller can print.
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
