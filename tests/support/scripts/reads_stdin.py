import sys

print(repr(sys.stdin.read()), sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through)
