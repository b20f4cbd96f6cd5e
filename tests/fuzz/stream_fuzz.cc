// Messages of the session's stream in both directions, and the rendezvous' addresses: from the wire
// to values and back. What is accepted survives the way back unchanged.
#include <string>

#include "proto/wire/convert.h"
#include "tests/fuzz/fuzz_target.h"

namespace eplb {
namespace {

template <class Message>
std::string Bytes(const Message& message) {
  std::string bytes;
  fuzz::Require(message.SerializeToString(&bytes), "a message cannot be serialised");
  return bytes;
}

template <class Wire>
void Check(std::string_view bytes) {
  Wire message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto value = wire::FromProto(message);
  fuzz::RequireOneLine(value.status());
  if (!value.ok()) return;
  Wire once;
  wire::ToProto(*value, &once);
  const auto again = wire::FromProto(once);
  fuzz::Require(again.ok(), "a message of ours is refused");
  Wire twice;
  wire::ToProto(*again, &twice);
  fuzz::Require(Bytes(once) == Bytes(twice), "a message changes on its way");
}

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = eplb::fuzz::AsText(data, size);
  eplb::Check<eplb::v1::Up>(bytes);
  eplb::Check<eplb::v1::Down>(bytes);
  return 0;
}
