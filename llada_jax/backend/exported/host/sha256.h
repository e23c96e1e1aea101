// SHA-256 (FIPS 180-4) of a file.
#pragma once

#include <array>
#include <cstring>
#include <fstream>

#include "json.h"

class Sha256 {
 public:
  static std::string of_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    require(file.is_open(), path + " is missing; allowed: the file that manifest.json names");
    Sha256 hash;
    std::vector<uint8_t> buffer(size_t(1) << 20);
    uint64_t bytes = 0;
    size_t used = 0;
    do {
      file.read(reinterpret_cast<char*>(buffer.data()), long(buffer.size()));
      used = size_t(file.gcount());
      bytes += used;
      for (size_t at = 0; at + 64 <= used; at += 64) hash.absorb(buffer.data() + at);
    } while (used == buffer.size());
    std::array<uint8_t, 128> last{};
    const size_t rest = used % 64, size = rest < 56 ? 64 : 128;
    std::memcpy(last.data(), buffer.data() + used - rest, rest);
    last[rest] = 0x80;
    for (size_t i = 0; i < 8; ++i) last[size - 1 - i] = uint8_t(bytes * 8 >> 8 * i);
    for (size_t at = 0; at < size; at += 64) hash.absorb(last.data() + at);
    std::string out;
    for (const uint32_t word : hash.state_)
      for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 15];
    return out;
  }

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint32_t, 64> k_;

  // The constants are the first bits of the fractions of square and cube roots of the first primes.
  Sha256() {
    size_t count = 0;
    for (uint32_t prime = 2; count < 64; ++prime) {
      bool is_prime = true;
      for (uint32_t i = 2; i * i <= prime; ++i) is_prime &= prime % i != 0;
      if (!is_prime) continue;
      if (count < 8) state_[count] = uint32_t(root(prime, 2));
      k_[count++] = uint32_t(root(prime, 3));
    }
  }
  static uint64_t root(unsigned __int128 prime, int degree) {  // in units of 2**-32
    unsigned __int128 found = 0;
    for (int bit = 36; bit >= 0; --bit) {
      const unsigned __int128 next = found | uint64_t(1) << bit;
      if ((degree == 2 ? next * next : next * next * next) <= prime << 32 * degree) found = next;
    }
    return uint64_t(found);
  }
  static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }
  void absorb(const uint8_t* block) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 4; ++j) w[i] = w[i] << 8 | block[4 * i + j];
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    std::array<uint32_t, 8> s = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t chosen = (s[4] & s[5]) ^ (~s[4] & s[6]), most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
      const uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + chosen + k_[i] + w[i];
      const uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + most;
      for (size_t j = 7; j > 0; --j) s[j] = s[j - 1];
      s[4] += one;
      s[0] = one + two;
    }
    for (size_t j = 0; j < 8; ++j) state_[j] += s[j];
  }
};
