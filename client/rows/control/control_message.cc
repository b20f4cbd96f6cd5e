// Encodes and reads frames of the control tree.
#include "client/rows/control/control_message.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/status_macros.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kControlMagic = 0x4356'4c45;  // "ELVC"

struct ControlHeader {
  uint32_t magic;
  uint8_t type;
  uint8_t op;
  uint8_t blame_late;
  uint8_t reserved;
  uint64_t call;
  uint32_t num_values;
  uint32_t num_ranks;
  uint32_t why_bytes;
  uint32_t reserved2;
};
static_assert(sizeof(ControlHeader) == 32 && std::is_trivially_copyable_v<ControlHeader>);

void AppendRaw(std::string& out, const void* data, size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

bool Plausible(const ControlHeader& header) {
  return header.magic == kControlMagic && header.type >= 1 &&
         header.type <= static_cast<uint8_t>(ControlMessageType::kAbort) &&
         header.op <= static_cast<uint8_t>(ControlOp::kFarewell) && header.blame_late <= 1 &&
         header.num_values <= kMaxVoteValues && header.num_ranks <= kMaxFrameRanks &&
         header.why_bytes <= kMaxFrameText;
}

}  // namespace

std::string EncodeFrame(const ControlMessage& frame) {
  ControlHeader header{};
  header.magic = kControlMagic;
  header.type = static_cast<uint8_t>(frame.type);
  header.op = static_cast<uint8_t>(frame.op);
  header.blame_late = frame.blame_late ? 1 : 0;
  header.call = frame.call;
  header.num_values = static_cast<uint32_t>(frame.values.size());
  header.num_ranks = static_cast<uint32_t>(std::min(frame.ranks.size(), kMaxFrameRanks));
  header.why_bytes = static_cast<uint32_t>(std::min(frame.why.size(), kMaxFrameText));
  std::string out;
  AppendRaw(out, &header, sizeof(header));
  AppendRaw(out, frame.values.data(), frame.values.size() * sizeof(int64_t));
  for (size_t i = 0; i < header.num_ranks; ++i) {
    AppendRaw(out, &frame.ranks[i].value, sizeof(int32_t));
  }
  AppendRaw(out, frame.why.data(), header.why_bytes);
  return out;
}

absl::Status FrameConnection::Send(const ControlMessage& frame, absl::Time deadline) {
  const std::string bytes = EncodeFrame(frame);
  return SendAll(fd_.get(), std::as_bytes(std::span(bytes)), deadline);
}

absl::StatusOr<std::optional<ControlMessage>> FrameConnection::Next() {
  EPLB_ASSIGN_OR_RETURN(std::optional<ControlMessage> frame, Parse());
  while (!frame.has_value()) {
    std::array<std::byte, 4096> buffer;
    const IoResult got = ReceiveSome(fd_.get(), buffer);
    if (got.closed) return absl::UnavailableError("connection closed");
    if (got.bytes == 0) return std::nullopt;
    AppendRaw(in_, buffer.data(), got.bytes);
    EPLB_ASSIGN_OR_RETURN(frame, Parse());
  }
  return frame;
}

absl::StatusOr<std::optional<ControlMessage>> FrameConnection::Parse() {
  ControlHeader header;
  if (in_.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, in_.data(), sizeof(header));
  if (!Plausible(header)) return absl::DataLossError("bytes that are no frame");
  const size_t total = sizeof(header) + header.num_values * sizeof(int64_t) +
                       header.num_ranks * sizeof(int32_t) + header.why_bytes;
  if (in_.size() < total) return std::nullopt;
  ControlMessage frame;
  frame.type = static_cast<ControlMessageType>(header.type);
  frame.op = static_cast<ControlOp>(header.op);
  frame.blame_late = header.blame_late == 1;
  frame.call = header.call;
  size_t at = sizeof(header);
  frame.values.resize(header.num_values);
  if (header.num_values > 0) {
    std::memcpy(frame.values.data(), in_.data() + at, header.num_values * sizeof(int64_t));
  }
  at += header.num_values * sizeof(int64_t);
  for (uint32_t i = 0; i < header.num_ranks; ++i, at += sizeof(int32_t)) {
    int32_t rank = 0;
    std::memcpy(&rank, in_.data() + at, sizeof(rank));
    frame.ranks.push_back(RankId{rank});
  }
  frame.why.assign(in_, at, header.why_bytes);
  in_.erase(0, total);
  return frame;
}

void FrameConnection::FinishSending() { (void)shutdown(fd_.get(), SHUT_WR); }

}  // namespace eplb
