#include "client/c/report.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/options.h"

namespace eplb::c {
namespace {

// Plain arrays: a thread that ends, or a process that does, has nothing to destroy.
constexpr size_t kMaxMessageBytes = 4096;
thread_local char last_message[kMaxMessageBytes];
thread_local char callback_message[kMaxMessageBytes];

// Cut, where it is too long, between two characters of UTF-8.
void Keep(std::string_view text, char* message) noexcept {
  size_t size = std::min(text.size(), kMaxMessageBytes - 1);
  const auto continues = [&](size_t i) { return (static_cast<uint8_t>(text[i]) & 0xc0) == 0x80; };
  while (size > 0 && size < text.size() && continues(size)) --size;
  std::memcpy(message, text.data(), size);
  message[size] = '\0';
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
