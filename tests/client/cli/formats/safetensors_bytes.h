// Writes safetensors bytes, right or wrong.
#ifndef EPLB_TESTS_CLIENT_CLI_FORMATS_SAFETENSORS_BYTES_H_
#define EPLB_TESTS_CLIENT_CLI_FORMATS_SAFETENSORS_BYTES_H_

#include <string>

namespace eplb {

inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + data;
}

}  // namespace eplb

#endif  // EPLB_TESTS_CLIENT_CLI_FORMATS_SAFETENSORS_BYTES_H_
