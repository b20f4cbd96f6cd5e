// Bytes written as hexadecimal digits. (absl::HexStringToBytes differs between the releases of
// Abseil.)
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace eplb {

// Returns the bytes of `hex`, two digits each, or nullopt if it is anything else. threads: safe.
inline std::optional<std::string> BytesFromHex(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    uint8_t byte = 0;
    const char* const end = hex.data() + i + 2;
    const auto parsed = std::from_chars(hex.data() + i, end, byte, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace eplb
