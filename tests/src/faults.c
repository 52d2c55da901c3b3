// Loaded before the C library (LD_PRELOAD): counts the calls of a process that open, change, sync or name files below a
// folder, and makes one of them fail or kills the process at it.
//   FAULTS_UNDER  the folder, an absolute path; relative paths count too
//   FAULTS_AT     the number of the call, counted from 1; none if not given
//   FAULTS_HOW    EIO, ENOSPC or KILL: a write that is killed has written half of its bytes
//   FAULTS_LOG    a file to which every counted call is written, one line each
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 4096

static atomic_long calls;
static atomic_bool counted[FILES];
static char names[FILES][128];

static int under(const char *path) {
    const char *folder = getenv("FAULTS_UNDER");
    if (!path || !folder) return 0;
    return path[0] != '/' || strncmp(path, folder, strlen(folder)) == 0;
}

// Counts a call. Returns 0, or 1 where this call must fail, with errno set; 2 where the process must die at it.
static int fault(const char *what, const char *path) {
    const char *at = getenv("FAULTS_AT"), *how = getenv("FAULTS_HOW"), *log = getenv("FAULTS_LOG");
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (log) {
        char line[512];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", number, what, path);
        int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (length > 0) syscall(SYS_write, file, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
        syscall(SYS_close, file);
    }
    if (!at || !how || number != atol(at)) return 0;
    if (strcmp(how, "KILL") == 0) return 2;
    errno = strcmp(how, "ENOSPC") == 0 ? ENOSPC : EIO;
    return 1;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int fails(const char *what, const char *path) {
    int found = fault(what, path);
    if (found == 2) die();
    return found;
}

static int ours(int file) { return file >= 0 && file < FILES && atomic_load(&counted[file]); }

static int opened(int file, const char *path, int count) {
    if (file >= 0 && file < FILES) {
        snprintf(names[file], sizeof names[file], "%s", path);
        atomic_store(&counted[file], count);
    }
    return file;
}

static int open_at(int folder, const char *path, int flags, int mode) {
    // A path within an opened folder is relative to that folder; such calls come from removals.
    int count = under(path) && !(flags & O_DIRECTORY && flags & O_PATH);
    if (count && fails(flags & (O_WRONLY | O_RDWR) ? "open for writing" : "open", path)) return -1;
    return opened(syscall(SYS_openat, folder, path, flags, mode), path, count);
}

#define OPEN(name, first, folder)                                  \
    int name(first const char *path, int flags, ...) {             \
        va_list more;                                              \
        va_start(more, flags);                                     \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
        va_end(more);                                              \
        return open_at(folder, path, flags, mode);                 \
    }
#define NOTHING
#define FOLDER int at,
OPEN(open, NOTHING, AT_FDCWD)
OPEN(open64, NOTHING, AT_FDCWD)
OPEN(openat, FOLDER, at)
OPEN(openat64, FOLDER, at)

int close(int file) {
    if (file >= 0 && file < FILES) atomic_store(&counted[file], 0);
    return syscall(SYS_close, file);
}

ssize_t write(int file, const void *bytes, size_t count) {
    if (ours(file)) {
        int found = fault("write", names[file]);
        if (found == 2) {
            syscall(SYS_write, file, bytes, count / 2);
            die();
        }
        if (found) return -1;
    }
    return syscall(SYS_write, file, bytes, count);
}

ssize_t writev(int file, const struct iovec *pieces, int count) {
    if (ours(file) && fails("write", names[file])) return -1;
    return syscall(SYS_writev, file, pieces, count);
}

int fsync(int file) {
    if (ours(file) && fails("sync", names[file])) return -1;
    return syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    if (ours(file) && fails("sync", names[file])) return -1;
    return syscall(SYS_fdatasync, file);
}

int ftruncate64(int file, off64_t length) {
    if (ours(file) && fails("truncate", names[file])) return -1;
    return syscall(SYS_ftruncate, file, length);
}

int rename(const char *from, const char *to) {
    if (under(to) && fails("rename", to)) return -1;
    return syscall(SYS_rename, from, to);
}

int unlink(const char *path) {
    if (under(path) && fails("unlink", path)) return -1;
    return syscall(SYS_unlink, path);
}

int unlinkat(int folder, const char *path, int flags) {
    if (under(path) && fails("unlink", path)) return -1;
    return syscall(SYS_unlinkat, folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    if (under(path) && fails("mkdir", path)) return -1;
    return syscall(SYS_mkdir, path, mode);
}

int rmdir(const char *path) {
    if (under(path) && fails("rmdir", path)) return -1;
    return syscall(SYS_rmdir, path);
}
