// Writes .npy bytes as numpy.save does.
#pragma once

#include <string>
#include <vector>

namespace eplb {

inline std::string NpyWithDict(const std::string& dict, const std::string& data, int version = 1) {
  std::string header = dict;
  const size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (size_t i = 0; i < prefix - 8; ++i) {
    bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return bytes + header + data;
}

inline std::string NpyDict(const std::string& descr, const std::string& shape,
                           bool fortran_order = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran_order ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

template <class Number>
std::string Bytes(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

}  // namespace eplb
