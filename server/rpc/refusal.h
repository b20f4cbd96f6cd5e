// Why the daemon refuses a peer: the names of the log and of the metric.
#ifndef EPLB_SERVER_RPC_REFUSAL_H_
#define EPLB_SERVER_RPC_REFUSAL_H_

#include <string_view>

namespace eplb {

enum class Refusal {
  kUnauthenticated,  // a certificate without a name
  kDenied,           // role or job
  kLimited,          // sessions or calls of one address, messages of one stream
  kMalformed,        // a message that breaks the protocol
  kHandshake,        // no connection: silent, plaintext, no certificate, or one that is not trusted
  kCrowded,          // a connection more than the limit of open files has room for
  kUnknownMessage,   // a message of a kind of a later version: skipped, its stream goes on
};
inline constexpr int kNumRefusals = 7;

constexpr std::string_view NameOf(Refusal refusal) {
  constexpr std::string_view kNames[kNumRefusals] = {"unauthenticated", "denied",    "limited",
                                                     "malformed",       "handshake", "crowded",
                                                     "unknown_message"};
  return kNames[static_cast<int>(refusal)];
}

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_REFUSAL_H_
