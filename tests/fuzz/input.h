// A fuzz target's bytes as a sequence of choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eplb::fuzz {

// The input, read from its start; zeros after its end.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  int32_t Below(int32_t limit) { return Byte() % limit; }
  // Returns as many bytes as the next byte says, or all that are left.
  std::string_view Bytes() {
    const size_t wanted = Byte();
    const std::string_view taken = bytes_.substr(0, wanted);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

}  // namespace eplb::fuzz
