// A text of a peer, as it may go into logs, the audit log and answers.
#ifndef EPLB_BASE_CLIPPED_H_
#define EPLB_BASE_CLIPPED_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace eplb::wire {

inline constexpr size_t kMaxText = 512;  // bytes

// `text` when it has at most `most` bytes; else its first characters with "..." behind them, `most`
// bytes together or up to three fewer: no character of UTF-8 is cut.
std::string Clipped(std::string_view text, size_t most = kMaxText);

}  // namespace eplb::wire

#endif  // EPLB_BASE_CLIPPED_H_
