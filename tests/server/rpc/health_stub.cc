#include "tests/server/rpc/health_stub.h"

#include <chrono>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

namespace eplb {

std::string AskHealth(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice empty;  // the request for the server as a whole
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::ByteBuffer(&empty, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  int tag = 0;
  call->Finish(&response, &status, &tag);
  void* done = nullptr;
  bool ok = false;
  (void)queue.Next(&done, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice bytes;
  if (!response.DumpToSingleSlice(&bytes).ok() || bytes.size() != 2) return "not a health answer";
  // Field 1, varint: 1 = SERVING, 2 = NOT_SERVING.
  return bytes.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
}

}  // namespace eplb
