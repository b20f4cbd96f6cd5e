// Mutual proof by HMAC-SHA256 over both nonces, one small message at a time.
#include "client/rows/control/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/rows/control/socket.h"

namespace eplb {
namespace {

constexpr std::string_view kHandshakeMagic = "EPLBHS01";
constexpr size_t kNonceBytes = 32;
constexpr size_t kMacBytes = 32;
constexpr size_t kHelloBytes = 8 + 3 * sizeof(uint32_t) + kNonceBytes;
constexpr std::byte kAdmitted{0x41};

void Append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void AppendU32(std::vector<std::byte>& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<std::byte>(value >> shift));
  }
}

uint32_t ReadU32(std::span<const std::byte> bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= std::to_integer<uint32_t>(bytes[at + i]) << (8 * i);
  return value;
}

void FillRandom(std::span<std::byte> bytes) {
  // Without randomness a proof is worthless, so the process cannot go on.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) !=
      1) {
    std::abort();
  }
}

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Status Stranger(std::string_view why) {
  return absl::UnauthenticatedError(
      absl::StrCat("handshake: ", absl::string_view(why.data(), why.size())));
}

}  // namespace

Handshake::Handshake(const Options& options) : options_(options) { FillRandom(own_nonce_); }

Handshake Handshake::Dial(const Options& options, RankId peer) {
  Handshake handshake(options);
  handshake.peer_ = peer;
  handshake.WriteHello();
  handshake.stage_ = Stage::kChallenge;
  handshake.needed_ = kNonceBytes + kMacBytes;
  return handshake;
}

Handshake Handshake::Answer(const Options& options) {
  Handshake handshake(options);
  handshake.stage_ = Stage::kHello;
  handshake.needed_ = kHelloBytes;
  return handshake;
}

void Handshake::WriteHello() {
  Append(hello_, std::as_bytes(std::span(kHandshakeMagic)));
  AppendU32(hello_, static_cast<uint32_t>(options_.role));
  AppendU32(hello_, static_cast<uint32_t>(options_.self.value));
  AppendU32(hello_, static_cast<uint32_t>(peer_.value));
  Append(hello_, own_nonce_);
  out_ = hello_;
}

Handshake::Bytes32 Handshake::Mac(const char* label) const {
  std::vector<std::byte> message;
  Append(message, std::as_bytes(std::span(label, std::strlen(label) + 1)));
  Append(message, hello_);  // roles, ranks and the dialler's nonce
  Append(message, answer_nonce_);
  Bytes32 mac{};
  unsigned int length = 0;
  const auto* result =
      HMAC(EVP_sha256(), options_.secret.data(), static_cast<int>(options_.secret.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &length);
  if (result == nullptr || length != kMacBytes) std::abort();  // SHA-256 is always there
  return mac;
}

absl::Status Handshake::OnHello() {
  if (!SameBytes(std::span(in_).first(kHandshakeMagic.size()),
                 std::as_bytes(std::span(kHandshakeMagic)))) {
    return Stranger("not a rank of this job");
  }
  if (ReadU32(in_, 8) != static_cast<uint32_t>(options_.role)) return Stranger("another role");
  const uint32_t from = ReadU32(in_, 12);
  if (ReadU32(in_, 16) != static_cast<uint32_t>(options_.self.value) || from > INT32_MAX) {
    return Stranger("meant for another rank");
  }
  peer_ = RankId{static_cast<int32_t>(from)};
  hello_ = in_;
  answer_nonce_ = own_nonce_;
  Append(out_, answer_nonce_);
  Append(out_, Mac("answer"));
  stage_ = Stage::kProof;
  needed_ = kMacBytes;
  return absl::OkStatus();
}

absl::Status Handshake::OnChallenge() {
  std::copy_n(in_.begin(), kNonceBytes, answer_nonce_.begin());
  if (!SameBytes(std::span(in_).subspan(kNonceBytes), Mac("answer"))) {
    return Stranger("the other end does not know the secret");
  }
  Append(out_, Mac("dial"));
  stage_ = Stage::kAdmission;
  needed_ = 1;
  return absl::OkStatus();
}

absl::Status Handshake::OnProof() {
  if (!SameBytes(in_, Mac("dial"))) return Stranger("the other end does not know the secret");
  stage_ = Stage::kDone;
  return absl::OkStatus();
}

absl::StatusOr<bool> Handshake::Step(int fd) {
  // Two messages each way, so the loop ends after a handful of turns.
  while (true) {
    const IoResult sent = SendSome(fd, std::span(out_).subspan(sent_));
    sent_ += sent.bytes;
    if (sent.closed) return absl::UnavailableError("handshake: connection closed");
    if (wants_write()) return false;
    if (stage_ == Stage::kDone) return true;

    const size_t have = in_.size();
    in_.resize(needed_);
    const IoResult got = ReceiveSome(fd, std::span(in_).subspan(have));
    in_.resize(have + got.bytes);
    if (got.closed) return absl::UnavailableError("handshake: connection closed");
    if (in_.size() < needed_) {
      if (got.bytes > 0) continue;
      return false;
    }
    absl::Status next;
    switch (stage_) {
      case Stage::kHello:
        next = OnHello();
        break;
      case Stage::kChallenge:
        next = OnChallenge();
        break;
      case Stage::kProof:
        next = OnProof();
        break;
      case Stage::kAdmission:
        if (in_[0] != kAdmitted) return Stranger("not admitted");
        stage_ = Stage::kDone;
        break;
      case Stage::kDone:
        break;
    }
    EPLB_RETURN_IF_ERROR(next);
    in_.clear();
  }
}

absl::Status Handshake::Admit(int fd) {
  // One byte into an empty send buffer never waits.
  const IoResult sent = SendSome(fd, std::span(&kAdmitted, 1));
  if (sent.bytes == 1) return absl::OkStatus();
  return absl::UnavailableError("handshake: connection closed");
}

}  // namespace eplb
