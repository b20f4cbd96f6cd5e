// Writes safetensors bytes, right or wrong.
#pragma once

#include <string>

namespace eplb {

inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + data;
}

}  // namespace eplb
