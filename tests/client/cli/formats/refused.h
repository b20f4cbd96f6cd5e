// Results of readers: values that must be there, and files that must be refused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace eplb {

// A result without a value ends the test with its status.
template <class T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
}

struct Refused {
  std::string name;
  std::string bytes;
  std::string message;  // a part of it
};

// InvalidArgument that names the file "f", says `refused.message` and is one printable line.
inline void ExpectRefusal(const Refused& refused, const absl::Status& status) {
  SCOPED_TRACE(refused.name);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, ::testing::StartsWith("f: "));
  EXPECT_THAT(message, ::testing::HasSubstr(refused.message));
  EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) {
    return c >= ' ' && c <= '~';
  })) << message;
}

// `text` with the first `from` replaced.
inline std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// Overwrites a number of `size` bytes, `offset` behind the first `mark`.
inline std::string Patched(std::string bytes, const std::string& mark, size_t offset,
                           uint64_t number, size_t size) {
  const size_t at = bytes.find(mark);
  EXPECT_NE(at, std::string::npos) << mark;
  for (size_t i = 0; i < size; ++i) {
    bytes[at + offset + i] = static_cast<char>(number >> (8 * i) & 0xFF);
  }
  return bytes;
}

}  // namespace eplb
