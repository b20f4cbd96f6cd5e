// grpc.health.v1 without its .proto: the messages are one field each.
#ifndef EPLB_TESTS_SERVER_RPC_HEALTH_STUB_H_
#define EPLB_TESTS_SERVER_RPC_HEALTH_STUB_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>

namespace eplb {

// "SERVING", "NOT_SERVING", or the error of the call.
std::string AskHealth(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace eplb

#endif  // EPLB_TESTS_SERVER_RPC_HEALTH_STUB_H_
