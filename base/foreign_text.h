// Text that a peer, a user's file or the environment gave: cut, and made safe to send and to print.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace eplb {

inline constexpr size_t kMaxText = 512;       // bytes
inline constexpr size_t kMaxLongText = 4096;  // bytes, of the longest text in any message

// True if `text` is UTF-8 as the standard defines it: without surrogates and overlong forms.
bool IsUtf8(std::string_view text);

// Returns `text` as UTF-8 on one line, for a terminal, a log or a message. Tabs and line ends
// become spaces. '?' replaces every other control character (C0, DEL, C1), every character that is
// invisible or changes the direction of its neighbours, and every byte that is not UTF-8. The
// result is never longer than `text`.
std::string Printable(std::string_view text);

// Returns the longest start of `text` that has at most `most` bytes and splits no character.
std::string_view FirstCharacters(std::string_view text, size_t most);

// Returns Printable(text) if it has at most `most` bytes, otherwise its first characters followed
// by "...", `most` bytes together or up to three fewer. REQUIRES: most >= 3.
std::string Clipped(std::string_view text, size_t most = kMaxText);

// Returns the same JSON document with \u escapes for the characters that Printable would replace.
// REQUIRES: `json` is serialised JSON in UTF-8.
std::string EscapedJson(std::string_view json);

}  // namespace eplb
