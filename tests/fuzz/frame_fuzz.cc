// Bytes that strangers and damaged peers can send between ranks: control frames, the handshake,
// headers of rows, and addresses.
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "client/rows/control/control_message.h"
#include "client/rows/control/meeting.h"
#include "client/rows/link_setup.h"
#include "client/rows/row_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace eplb {
namespace {

// The peer's bytes are in `reader`; the peer is still connected.
struct Connection {
  explicit Connection(std::span<const std::byte> bytes) {
    std::array<int, 2> ends{};
    fuzz::Require(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
        "no socket");
    writer = Fd(ends[0]);
    reader = Fd(ends[1]);
    (void)SendSome(writer.get(), bytes);
  }
  Fd writer;
  Fd reader;
};

void CheckControl(std::span<const std::byte> bytes) {
  Connection peer(bytes);
  FrameConnection connection(std::move(peer.reader));
  for (;;) {
    const absl::StatusOr<std::optional<ControlMessage>> frame = connection.Next();
    fuzz::RequireOneLine(frame.status());
    if (!frame.ok() || !*frame) return;
    fuzz::Require((*frame)->values.size() <= kMaxVoteValues, "too many values");
    fuzz::Require((*frame)->ranks.size() <= kMaxFrameRanks, "too many ranks");
  }
}

void CheckHandshake(Handshake handshake, std::span<const std::byte> bytes) {
  const Connection peer(bytes);
  const absl::StatusOr<bool> done = handshake.Step(peer.reader.get());
  fuzz::RequireOneLine(done.status());
  fuzz::Require(!done.ok() || !*done, "a stranger was believed");
}

void CheckHandshakes(std::span<const std::byte> bytes) {
  const Handshake::Options options{
      .secret = "secret", .role = ConnectionRole::kRows, .self = RankId{1}};
  CheckHandshake(Handshake::Answer(options), bytes);
  CheckHandshake(Handshake::Dial(options, RankId{0}), bytes);
}

// By what follows on the connection, or by the row that it is about.
bool IsBounded(const RowMessage& frame) {
  const int64_t most = HasPayload(frame) ? kRowPieceBytes : IsAboutRow(frame) ? frame.row_bytes : 0;
  return frame.bytes >= 0 && frame.bytes <= most;
}

void CheckRows(std::span<const std::byte> bytes) {
  Connection peer(bytes);
  PeerLink link({.rank = RankId{0}, .fd = std::move(peer.reader), .staging_bytes = 4096});
  while (const std::optional<RowMessage> header = link.ReadHeader()) {
    const absl::Status status = CheckFrame(*header);
    fuzz::RequireOneLine(status);
    if (!status.ok()) break;
    fuzz::Require(IsBounded(*header), "a piece without bound");
    if (!HasPayload(*header)) continue;
    link.ExpectPayload(static_cast<size_t>(header->bytes), {});
    if (!link.ReadPayload()) break;
  }
  RowMessage frame;
  if (bytes.size() < sizeof(frame)) return;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  // A peer that knows the checksum may still write any number.
  const RowMessage sealed = SealFrame(frame);
  fuzz::Require(!CheckFrame(sealed).ok() || IsBounded(sealed), "a piece without bound");
}

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  eplb::CheckControl(bytes);
  eplb::CheckHandshakes(bytes);
  eplb::CheckRows(bytes);
  (void)eplb::LinkAddress::Decode(std::string(eplb::fuzz::AsText(data, size)));
  return 0;
}
