#include "base/text.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace eplb {

std::string ErrnoText(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof(buffer));
}

}  // namespace eplb

namespace eplb::wire {

std::string Clipped(std::string_view text, size_t most) {
  constexpr std::string_view kMore = "...";
  constexpr unsigned char kContinuationMask = 0xC0;
  constexpr unsigned char kContinuation = 0x80;  // of a character's second to fourth byte
  if (text.size() <= most) return std::string(text);
  size_t end = most - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & kContinuationMask) == kContinuation) {
    --end;
  }
  return absl::StrCat(absl::string_view(text.data(), end), "...");
}

}  // namespace eplb::wire
