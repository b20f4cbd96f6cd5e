// Values as bytes, so that equal values have equal bytes: what states are compared by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/config.h"

#include "placement/digest.h"
#include "proto/wire/messages.h"

namespace eplb::explorer {

// True if `found` is the size that a value has with the libraries of Debian 12. Another size
// means that a field was added. Containers of other libraries have other sizes: always true there.
constexpr bool HasSize(size_t found, size_t size) {
  constexpr int kAbseilOfDebian12 = 20220623;
  return ABSL_LTS_RELEASE_VERSION != kAbseilOfDebian12 || found == size;
}

class Bytes {
 public:
  void Add(int64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Add(const Digest& digest) {
    // Few placements exist here: 8 of 32 bytes tell them apart.
    text_.append(reinterpret_cast<const char*>(digest.bytes.data()), sizeof(int64_t));
  }
  void Add(std::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    text_.append(text);
  }
  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

// Sentences are left out: nothing in the protocol depends on them.
void AddMessage(const wire::UpMessage& message, Bytes& bytes);
void AddMessage(const wire::DownMessage& message, Bytes& bytes);
void AddPropose(const wire::Propose& propose, Bytes& bytes);
void AddMemory(const wire::CarriedMemory& memory, Bytes& bytes);

// "Ready v3", for traces.
std::string NameOf(const wire::UpMessage& message);
std::string NameOf(const wire::DownMessage& message);

// Takes out what only people read.
void DropSentences(wire::UpMessage& message);
void DropSentences(wire::DownMessage& message);

}  // namespace eplb::explorer
