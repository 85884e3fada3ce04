# redis-rb as it comes: ruby traps.rb LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are.

require 'redis'

_, port, mode = ARGV
WAIT = %w[LOCK.ACQUIRE traps client PX 600000 BLOCK 600000]
NOTHING = %w[LOCK.ACQUIRE traps other]
ERROR = %w[LOCK.ACQUIRE traps other PX 0]
$stdout.sync = true
client = Redis.new(port: port.to_i)
wait = lambda do
  puts "reply #{client.call(*WAIT).inspect}"
rescue Redis::BaseError => e
  puts "error #{e.class} #{e.message}"
end

case mode
when 'wait'
  wait.call
when 'shared'
  waiting = Thread.new(&wait)
  $stdin.gets
  puts 'get sent'
  client.get('traps:other')
  puts 'get answered'
  waiting.join
else
  puts "version #{Redis::VERSION}"
  puts "null #{client.call(*NOTHING).inspect}"
  begin
    client.call(*ERROR)
  rescue Redis::BaseError => e
    puts "error #{e.class} #{e.message}"
  end
end
