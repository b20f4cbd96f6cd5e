// A request that was read already and the answer to it, as cpp-httplib reads and writes them.
#ifndef EPLB_SERVER_HTTP_ANSWER_STREAM_H_
#define EPLB_SERVER_HTTP_ANSWER_STREAM_H_

#include <httplib.h>

#include <string>
#include <utility>

namespace eplb {

// Touches no socket, so that no peer can hold up the thread that makes an answer.
// head: the request as it was read. threads: one caller.
class AnswerStream : public httplib::Stream {
 public:
  explicit AnswerStream(std::string head) : head_(std::move(head)) {}

  bool is_readable() const override { return read_ < head_.size(); }
  bool is_writable() const override { return true; }

  ssize_t read(char* out, size_t size) override {
    const size_t taken = head_.copy(out, size, read_);
    read_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* bytes, size_t size) override {
    answer_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }

  // Nothing is decided by addresses.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

  std::string TakeAnswer() { return std::move(answer_); }

 private:
  const std::string head_;
  size_t read_ = 0;
  std::string answer_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_ANSWER_STREAM_H_
