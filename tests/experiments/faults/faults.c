/* Fails the n-th write, rename or fsync of a process below a folder; for LD_PRELOAD.

   ENOSPC  and every write after it: the disk stays full. Half of the n-th write is on it.
   EIO     this one alone.
   GONE    and whatever would change the disk after it: what a killed process leaves. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, FULL, BROKEN, GONE };
static char folder[4096];
static atomic_long calls, at;
static atomic_int kind;

void faults_arm(const char *below, long n, int how) {
  strncpy(folder, below, sizeof folder - 1);
  atomic_store(&calls, 0);
  atomic_store(&at, n);
  atomic_store(&kind, how);
}
long faults_calls(void) { return atomic_load(&calls); }

static int named(const char *path) {
  if (!folder[0] || !path) return 0;
  if (path[0] == '/') return !strncmp(path, folder, strlen(folder));
  char here[4096];
  return getcwd(here, sizeof here) && !strncmp(here, folder, strlen(folder));
}
static int opened(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return path[0] == '/' && named(path);
}
static int below(int fd, const char *path) {
  return path[0] == '/' || fd == AT_FDCWD ? named(path) : opened(fd);
}
/* The errno of a call that counts; 0 where it is made. */
static int counted(int is_write) {
  long n = atomic_fetch_add(&calls, 1) + 1, from = atomic_load(&at);
  int how = atomic_load(&kind);
  if (!from || n < from) return 0;
  if (how == FULL) return n == from || is_write ? ENOSPC : 0;
  if (how == BROKEN) return n == from ? EIO : 0;
  return how == GONE ? EIO : 0;
}
static int gone(void) {
  return atomic_load(&kind) == GONE && atomic_load(&at) && atomic_load(&calls) >= atomic_load(&at);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(error) do { int e = (error); if (e) { errno = e; return -1; } } while (0)
#define WRITES(name, result, parameters, half, arguments)                             \
  result name parameters {                                                            \
    if (opened(fd)) {                                                                 \
      int e = counted(1);                                                             \
      if (e) { half; errno = e; return -1; }                                          \
    }                                                                                 \
    return REAL(name) arguments;                                                      \
  }
WRITES(write, ssize_t, (int fd, const void *data, size_t size), REAL(write)(fd, data, size / 2), (fd, data, size))
WRITES(pwrite, ssize_t, (int fd, const void *data, size_t size, off_t to), , (fd, data, size, to))
WRITES(pwrite64, ssize_t, (int fd, const void *data, size_t size, off64_t to), , (fd, data, size, to))
WRITES(writev, ssize_t, (int fd, const struct iovec *parts, int count), REAL(write)(fd, parts[0].iov_base, parts[0].iov_len / 2), (fd, parts, count))
WRITES(sendfile, ssize_t, (int fd, int from, off_t *at_, size_t size), , (fd, from, at_, size))
WRITES(sendfile64, ssize_t, (int fd, int from, off64_t *at_, size_t size), , (fd, from, at_, size))
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  if (opened(fileno(file))) {
    int e = counted(1);
    if (e) { errno = e; return 0; }
  }
  return REAL(fwrite)(data, size, count, file);
}
ssize_t copy_file_range(int from, off64_t *a, int fd, off64_t *b, size_t size, unsigned flags) {
  if (opened(fd)) FAIL(counted(1));
  return REAL(copy_file_range)(from, a, fd, b, size, flags);
}
int fsync(int fd) { if (opened(fd)) FAIL(counted(0)); return REAL(fsync)(fd); }
int fdatasync(int fd) { if (opened(fd)) FAIL(counted(0)); return REAL(fdatasync)(fd); }
int rename(const char *a, const char *b) { if (named(b)) FAIL(counted(0)); return REAL(rename)(a, b); }
int renameat(int x, const char *a, int y, const char *b) {
  if (below(y, b)) FAIL(counted(0));
  return REAL(renameat)(x, a, y, b);
}
int renameat2(int x, const char *a, int y, const char *b, unsigned flags) {
  if (below(y, b)) FAIL(counted(0));
  return REAL(renameat2)(x, a, y, b, flags);
}

int unlink(const char *a) { if (gone() && named(a)) FAIL(EIO); return REAL(unlink)(a); }
int unlinkat(int x, const char *a, int flags) { if (gone() && below(x, a)) FAIL(EIO); return REAL(unlinkat)(x, a, flags); }
int rmdir(const char *a) { if (gone() && named(a)) FAIL(EIO); return REAL(rmdir)(a); }
int mkdir(const char *a, mode_t mode) { if (gone() && named(a)) FAIL(EIO); return REAL(mkdir)(a, mode); }
int mkdirat(int x, const char *a, mode_t mode) { if (gone() && below(x, a)) FAIL(EIO); return REAL(mkdirat)(x, a, mode); }
int ftruncate(int fd, off_t size) { if (gone() && opened(fd)) FAIL(EIO); return REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { if (gone() && opened(fd)) FAIL(EIO); return REAL(ftruncate64)(fd, size); }
#define OPENS(name, first, given, is_below)                                           \
  int name(first const char *path, int flags, ...) {                                  \
    va_list more;                                                                     \
    va_start(more, flags);                                                            \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;           \
    va_end(more);                                                                     \
    if (gone() && flags & (O_CREAT | O_TRUNC) && is_below) FAIL(EIO);                 \
    return ((int (*)(first const char *, int, ...))dlsym(RTLD_NEXT, #name))(given path, flags, mode); \
  }
#define NOTHING
#define DIRECTORY int x,
#define X x,
OPENS(open, NOTHING, NOTHING, named(path))
OPENS(open64, NOTHING, NOTHING, named(path))
OPENS(openat, DIRECTORY, X, below(x, path))
OPENS(openat64, DIRECTORY, X, below(x, path))
